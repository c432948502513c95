"""Locks with redis-py, as told on standard input. See .ci/other-clients."""

import sys

import redis

server = redis.Redis.from_url(sys.argv[2])
held = None
print("ready redis-py", redis.__version__, flush=True)

for line in sys.stdin:
    command, *rest = line.split()
    try:
        if command == "lock":
            name, ttl_ms = rest
            lock = server.lock(name, timeout=int(ttl_ms) / 1000, blocking=False)
            taken = lock.acquire()
            held = lock if taken else held
            answer = "locked" if taken else "taken"
        else:
            held.release()
            answer = "released"
    except redis.exceptions.LockError:
        answer = "refused"
    except redis.exceptions.RedisError as error:
        answer = f"error {error}"
    print(answer, flush=True)
