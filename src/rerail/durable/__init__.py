"""The only package that makes state durable: nothing else may sync, rename, link or open state for writing.

Rules a reader must not break:
- a sync that failed is never tried again on the same file: the kernel may have dropped the data and will
  report success the second time;
- a name is durable only once its directory is synced;
- every file is opened close-on-exec and never through a symbolic link; writes loop until all is written.
"""

from __future__ import annotations

from rerail.durable.append import AppendFile
from rerail.durable.files import (
    DIR_MODE,
    FILE_MODE,
    TEMPORARY_SUFFIX,
    append_line,
    create_file,
    make_dir,
    move_file,
    new_dir,
    open_log,
    open_to_read,
    publish_dir,
    read_file,
    read_start,
    remove_file,
    remove_temporaries,
    remove_tree,
    replace_cache,
    replace_file,
    reserve_space,
    set_length,
    sync,
    sync_dir,
    sync_existing,
    write_all,
    write_new,
    writer_temporary,
)
from rerail.durable.lock import Lock, SharedLock

__all__ = [
    "DIR_MODE",
    "FILE_MODE",
    "TEMPORARY_SUFFIX",
    "AppendFile",
    "Lock",
    "SharedLock",
    "append_line",
    "create_file",
    "make_dir",
    "move_file",
    "new_dir",
    "open_log",
    "open_to_read",
    "publish_dir",
    "read_file",
    "read_start",
    "remove_file",
    "remove_temporaries",
    "remove_tree",
    "replace_cache",
    "replace_file",
    "reserve_space",
    "set_length",
    "sync",
    "sync_dir",
    "sync_existing",
    "write_all",
    "write_new",
    "writer_temporary",
]
