"""`python -m termwise` is `termwise`."""

from termwise.cli import main

if __name__ == "__main__":
    main()
