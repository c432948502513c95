-- The store of one machine. Times are microseconds since 1970, or nanoseconds since boot.

-- What is known of each name: its lock, if it has one, and its fence.
CREATE TABLE names (
    name            BLOB PRIMARY KEY,
    owner           BLOB,     -- who has the lock; NULL: it is free
    holders         TEXT,     -- 'realm pid:start …': dead when all of these are; NULL: never
    clock           TEXT,     -- the boot and time namespace in which expires_boot_ns counts
    expires_boot_ns INTEGER,
    expires_unix_us INTEGER,  -- the same for readers elsewhere; NULL: never
    fence           INTEGER,  -- the highest token granted
    fence_until_us  INTEGER   -- until when the fence must be kept
) WITHOUT ROWID;

-- Who waits for what, in the order of their ids, and the socket that wakes them.
CREATE TABLE waiters (
    id     INTEGER PRIMARY KEY AUTOINCREMENT,
    name   BLOB NOT NULL,
    socket TEXT NOT NULL
);
CREATE INDEX waiters_by_name ON waiters (name, id);

-- Since when this file is known to have forgotten nothing: one row.
CREATE TABLE epoch (
    identity TEXT NOT NULL,   -- the boot, and which file this is
    began_us INTEGER NOT NULL
);
