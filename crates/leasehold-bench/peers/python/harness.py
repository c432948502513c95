"""Drives redis-py, python-redis-lock and pottery. Arguments and output: see ../README.md."""

import json
import os
import sys
import threading
import time

import redis

client, urls, work, tasks, seconds, hold_ms, settings, ttl_ms = sys.argv[1:]
tasks, seconds, hold_s, ttl_s = int(tasks), float(seconds), float(hold_ms) / 1e3, int(ttl_ms) // 1000
contending = work == "contend"


def redis_py(nodes, name):
    # A user who sets nothing gets an attempt every 100 ms. Of 1, 2, 5 and 10, 2 ms hands over most.
    options = {"sleep": 0.002} if settings == "best" else {}
    lock = nodes[0].lock(name, timeout=ttl_s, **options)
    return lock.acquire, lock.release


def python_redis_lock(nodes, name):
    import redis_lock

    lock = redis_lock.Lock(nodes[0], name, expire=ttl_s)
    return lock.acquire, lock.release


def pottery(nodes, name):
    from pottery import Redlock

    lock = Redlock(key=name, masters=set(nodes), auto_release_time=ttl_s)
    return lock.acquire, lock.release


CLIENTS = {"redis-py": redis_py, "python-redis-lock": python_redis_lock, "pottery": pottery}


class Ledger:
    """What all tasks write down together."""

    def __init__(self):
        self.guard = threading.Lock()
        self.pairs = self.handovers = self.errors = 0
        self.held = 0.0
        self.waits, self.waiting = [], {}
        self.last, self.inside, self.broken = None, False, False

    def enter(self, who):
        with self.guard:
            self.waits.append(time.monotonic() - self.waiting.pop(who))
            if contending:
                self.broken |= self.inside
                self.inside = True
                self.handovers += self.last not in (None, who)
                self.last = who

    def leave(self, held):
        with self.guard:
            self.inside = False
            self.held += held

    def count(self, field):
        with self.guard:
            setattr(self, field, getattr(self, field) + 1)

    def line(self, length):
        with self.guard:
            now = time.monotonic()
            waits = self.waits + [now - since for since in self.waiting.values()]
            return json.dumps({
                "length_ms": length * 1e3,
                "pairs": self.pairs,
                "handovers": self.handovers,
                "errors": self.errors,
                "mean_wait_ms": sum(waits) / max(len(waits), 1) * 1e3,
                "longest_wait_ms": max(waits, default=0) * 1e3,
                "held_ms": self.held / max(self.pairs, 1) * 1e3,
            })


ledger = Ledger()


def pair(who, acquire, release):
    ledger.waiting.setdefault(who, time.monotonic())
    try:
        taken = acquire()
    except Exception:
        taken = False
    if not taken:
        return ledger.count("errors")
    ledger.enter(who)
    if contending:
        entered = time.monotonic()
        time.sleep(hold_s)
        ledger.leave(time.monotonic() - entered)
    try:
        release()
        ledger.count("pairs")
    except Exception:
        ledger.count("errors")


def task(who, ready):
    # A connection for each: that of a thread is not shared while it waits for an answer.
    nodes = [redis.Redis.from_url(url) for url in urls.split(",")]
    own = f"{client}/{os.getpid()}/{who}"
    acquire, release = CLIENTS[client](nodes, own)
    acquire()
    release()
    if contending:
        acquire, release = CLIENTS[client](nodes, f"{client}/{os.getpid()}")
    ready.wait()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pair(who, acquire, release)


ready = threading.Barrier(tasks + 1)
threads = [threading.Thread(target=task, args=(who, ready), daemon=True) for who in range(tasks)]
for thread in threads:
    thread.start()
ready.wait()
start = time.monotonic()
for thread in threads:
    # Who waits for a lock at the end is not waited for.
    thread.join(max(0, start + seconds - time.monotonic()) if contending else None)
print(ledger.line(time.monotonic() - start), flush=True)
if ledger.broken:
    sys.stderr.write("two held the lock at once\n")
os._exit(1 if ledger.broken else 0)
