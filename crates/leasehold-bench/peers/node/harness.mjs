// Drives npm's redlock 4 and 5 over ioredis. Arguments and output: see ../README.md.

import Redis from "ioredis";
import Redlock4 from "redlock4";
import Redlock5 from "redlock5";

const [client, urls, work, tasks, seconds, holdMs, settings, ttlMs] = process.argv.slice(2);
const ttl = Number(ttlMs);
const contending = work === "contend";
const WARM_UP_MS = 700;

// Where it hands over most often, of 1, 2, 5 and 10 ms. On several nodes contenders that come back
// too soon split the votes.
const several = urls.includes(",");
const bestDelay = several ? { redlock4: 10, redlock5: 5 }[client] : 2;
const best = { retryCount: 1000, retryDelay: bestDelay, retryJitter: Math.floor(bestDelay / 2) };
// A user who sets nothing gets ten retries, 200 ms apart.
const options = settings === "best" ? best : {};

const clients = {
  redlock4: (nodes) => {
    const redlock = new Redlock4(nodes, options);
    return { acquire: (name) => redlock.lock(name, ttl), release: (lock) => lock.unlock() };
  },
  redlock5: (nodes) => {
    const redlock = new Redlock5(nodes, options);
    return { acquire: (name) => redlock.acquire([name], ttl), release: (lock) => lock.release() };
  },
};

const connect = () => clients[client](urls.split(",").map((url) => new Redis(url)));
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

const count = { pairs: 0, handovers: 0, errors: 0 };
const waits = [];
const waiting = new Map(); // who waits, since when
let held = 0;
let last = null;
let inside = false;

async function hold(who) {
  if (inside) throw new Error("two held the lock at once");
  inside = true;
  if (last !== null && last !== who) count.handovers += 1;
  last = who;
  const entered = performance.now();
  await sleep(Number(holdMs));
  held += performance.now() - entered;
  inside = false;
}

async function pair(lock, who, name) {
  if (!waiting.has(who)) waiting.set(who, performance.now());
  let lease;
  try {
    lease = await lock.acquire(name);
  } catch {
    count.errors += 1;
    return;
  }
  waits.push(performance.now() - waiting.get(who));
  waiting.delete(who);
  if (contending) await hold(who);
  try {
    await lock.release(lease);
    count.pairs += 1;
  } catch {
    count.errors += 1;
  }
}

// Without contention one client serves all tasks: it sends what they want side by side.
const shared = contending ? null : connect();
const all = [];
for (let who = 0; who < Number(tasks); who += 1) {
  const lock = shared ?? connect();
  const own = `${client}/${process.pid}/${who}`;
  all.push({ lock, who, own, name: contending ? `${client}/${process.pid}` : own });
}
// Without contention, for as long as the compiler of this language needs: turns are short.
const warm = performance.now() + WARM_UP_MS;
await Promise.all(
  all.map(async ({ lock, own }) => {
    do await lock.release(await lock.acquire(own));
    while (performance.now() < warm);
  }),
);

const start = performance.now();
const end = start + Number(seconds) * 1000;
const running = all.map(async ({ lock, who, name }) => {
  while (performance.now() < end) await pair(lock, who, name);
});
// Who waits at the end is not waited for; in the other work nobody waits for long.
const time = contending ? [sleep(end - start)] : [];
await Promise.race([Promise.all(running), ...time]);

const now = performance.now();
for (const since of waiting.values()) waits.push(now - since);
const line = JSON.stringify({
  length_ms: now - start,
  ...count,
  mean_wait_ms: waits.reduce((sum, wait) => sum + wait, 0) / Math.max(waits.length, 1),
  longest_wait_ms: waits.reduce((most, wait) => Math.max(most, wait), 0),
  held_ms: held / Math.max(count.pairs, 1),
});
process.stdout.write(`${line}\n`, () => process.exit(0));
