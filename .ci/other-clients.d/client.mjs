// Locks with npm's redlock 4 or 5, as told on standard input. See .ci/other-clients.

import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";
import Redis from "ioredis";
import Redlock4 from "redlock4";
import Redlock5, { ResourceLockedError } from "redlock5";

const [client, url] = process.argv.slice(2);
const nodes = [new Redis(url)];
const once = { retryCount: 0 };

// What went wrong other than that the lock is taken. Both versions report it as an event only.
let failure = null;
const note = (error) => {
  if (!(error instanceof ResourceLockedError)) failure = error;
};

const clients = {
  redlock4: () => {
    const redlock = new Redlock4(nodes, once);
    redlock.on("clientError", note);
    return { lock: (name, ttl) => redlock.lock(name, ttl), unlock: (lock) => lock.unlock() };
  },
  redlock5: () => {
    const redlock = new Redlock5(nodes, once);
    redlock.on("error", note);
    return { lock: (name, ttl) => redlock.acquire([name], ttl), unlock: (lock) => lock.release() };
  },
};
const { lock, unlock } = clients[client]();

async function answer(attempt, yes, no) {
  failure = null;
  try {
    await attempt();
    return yes;
  } catch (error) {
    return failure === null ? no : `error ${failure}`;
  }
}

const manifest = new URL(`node_modules/${client}/package.json`, import.meta.url);
console.log(`ready redlock ${JSON.parse(readFileSync(manifest)).version.replace(/^v/, "")}`);

let held = null;
for await (const line of createInterface({ input: process.stdin })) {
  const [command, name, ttl] = line.split(" ");
  const take = async () => {
    held = await lock(name, Number(ttl));
  };
  console.log(
    command === "lock"
      ? await answer(take, "locked", "taken")
      : await answer(() => unlock(held), "released", "refused"),
  );
}
process.exit(0);
