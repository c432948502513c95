-- The store of one machine. Times are microseconds since 1970, or nanoseconds since boot.

-- What is known of each name: its lock, if it has one, and its fence.
CREATE TABLE names (
    name            BLOB NOT NULL UNIQUE,
    owner           BLOB,     -- who has the lock; NULL: it is free
    holders         TEXT,     -- 'realm pid:start …': dead when all of these are; NULL: never
    clock           TEXT,     -- the boot and time namespace in which expires_boot_ns counts
    expires_boot_ns INTEGER,
    expires_unix_us INTEGER,  -- the same for readers elsewhere; NULL: never
    fence           INTEGER,  -- the highest token granted
    fence_until_us  INTEGER,  -- until when the fence must be kept
    granted_token   INTEGER,  -- the token granted last
    granted_unix_us INTEGER,  -- and when it was first granted
    line            INTEGER NOT NULL DEFAULT 0  -- 0: certainly nobody waits
);

-- Who waits for what, in the order of their tickets.
CREATE TABLE waiters (
    name          BLOB NOT NULL,
    owner         BLOB NOT NULL,    -- what the lock's value will be
    ticket        INTEGER NOT NULL, -- what the lock's token will be
    clock         TEXT NOT NULL,    -- where asked_boot_ns counts; '': nowhere
    asked_boot_ns INTEGER NOT NULL, -- when it asked last
    asked_unix_us INTEGER NOT NULL, -- the same for readers elsewhere
    holders       TEXT,             -- the process that waits, as in names
    socket        TEXT NOT NULL,    -- where to tell it; '': nowhere, it only asks
    id            INTEGER NOT NULL, -- and who is meant there
    UNIQUE (name, owner)
);
CREATE INDEX waiters_in_line ON waiters (name, ticket, owner);
CREATE INDEX waiters_by_time ON waiters (name, clock, asked_boot_ns);

-- Since when this file is known to have forgotten nothing: one row.
CREATE TABLE epoch (
    identity TEXT NOT NULL,   -- the boot, and which file this is
    began_us INTEGER NOT NULL
);
