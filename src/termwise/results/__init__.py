"""Run folders, records and locks: where all commands meet.

    OUT/run.json        what was asked, as given and as resolved; versions, machine, time
    OUT/records.jsonl   one JSON object a measured value, appended line by line
    OUT/lock            pid, host and start time of the one writer
    OUT/runs/VARIANT/SEED/

The leaf that all others may import and that imports nothing of ours. Standard library and filelock only: a lock is taken
before torch is imported.
"""

from termwise.results.durations import format_duration, parse_duration
from termwise.results.environment import machine, now, versions
from termwise.results.files import atomic_write_text, canonical_json, config_hash, file_name, sync_folder
from termwise.results.folder import RunFolder, num_records
from termwise.results.lock import FolderLock, FolderLocked
from termwise.results.record import KINDS, SCHEMA, STATUSES, Record, check_schema

__all__ = [
    "KINDS", "SCHEMA", "STATUSES", "FolderLock", "FolderLocked", "Record", "RunFolder", "atomic_write_text", "canonical_json",
    "check_schema", "config_hash", "file_name", "format_duration", "machine", "now", "num_records", "parse_duration", "sync_folder", "versions",
]  # fmt: skip
