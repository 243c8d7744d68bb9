"""The commands, a file each: parse, call one function, print. Heavy imports stand inside the function."""
