-- The embedded store. Times are in microseconds since 1970 (_us) or nanoseconds since boot (_ns).

-- One row for each name: its lock, if it has one, and its fence.
CREATE TABLE names (
    name            BLOB NOT NULL UNIQUE,
    owner           BLOB,     -- the value of the lock, or the marker of readers; NULL: the lock is free
    holders         TEXT,     -- 'realm pid:start …': the lock is free when all are dead; NULL: no process
    clock           TEXT,     -- the boot and time namespace of expires_boot_ns
    expires_boot_ns INTEGER,
    expires_unix_us INTEGER,  -- the same by the wall clock, for other boots and namespaces; NULL: never
    fence           INTEGER,  -- the largest token granted
    write_fence     INTEGER,  -- the largest granted to an exclusive claim; NULL: the same
    fence_until_us  INTEGER,  -- until when the fence must be kept
    granted_token   INTEGER,  -- the token granted last
    granted_unix_us INTEGER,  -- when that token was first granted
    permits         INTEGER,  -- the number of permits, if this is a semaphore
    line            INTEGER NOT NULL DEFAULT 0  -- 0: there are certainly no waiters
);

-- One row for each reader. They count only while the lock of their name is a marker.
CREATE TABLE readers (
    name            BLOB NOT NULL,
    owner           BLOB NOT NULL,
    holders         TEXT,     -- these and the next: as in names
    clock           TEXT,
    expires_boot_ns INTEGER NOT NULL,
    expires_unix_us INTEGER NOT NULL,
    UNIQUE (name, owner)
);

-- One row for each waiter of a name. The line is ordered by ticket.
CREATE TABLE waiters (
    name          BLOB NOT NULL,
    owner         BLOB NOT NULL,    -- the value that the lock will have
    ticket        INTEGER NOT NULL, -- the token that the lock will have; 15 more for a shared claim
    clock         TEXT NOT NULL,    -- the boot and time namespace of asked_boot_ns; '': unknown
    asked_boot_ns INTEGER NOT NULL, -- when its last WAIT arrived
    asked_unix_us INTEGER NOT NULL, -- the same by the wall clock
    holders       TEXT,             -- the process of the waiter, as in names
    socket        TEXT NOT NULL,    -- the socket for notifications; '': none, the waiter only polls
    id            INTEGER NOT NULL, -- the id of the waiter at that socket
    UNIQUE (name, owner)
);
CREATE INDEX waiters_in_line ON waiters (name, ticket, owner);
CREATE INDEX waiters_by_time ON waiters (name, clock, asked_boot_ns);

-- Since when this file has certainly lost nothing: one row for each boot and file.
CREATE TABLE epoch (
    identity TEXT NOT NULL,   -- the boot and the file (device:inode)
    began_us INTEGER NOT NULL
);
