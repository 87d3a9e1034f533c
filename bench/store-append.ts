// How fast the embedded store takes messages, against LMDB alone acknowledging after commit, or after fsync (what it would be without the journal).
// Usage: npx tsx bench/store-append.ts [--seconds 3] [--in-flight 64] [--channels 100] [--durability process|disk] [--checkpoint-ms 200] [--no-dedupe] [--keeps 0]
// Prints both figures, the ratio, and the main thread's CPU per message.

import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { open } from "lmdb";
import type { MessageDraft } from "../src/broker/ports.ts";
import { createEmbeddedStore } from "../src/store/embedded/store.ts";

const { values: args } = parseArgs({
  options: {
    seconds: { type: "string", default: "3" },
    "in-flight": { type: "string", default: "64" },
    channels: { type: "string", default: "100" },
    durability: { type: "string", default: "process" },
    "checkpoint-ms": { type: "string", default: "200" },
    "no-dedupe": { type: "boolean", default: false },
    keeps: { type: "string", default: "0" },
  },
});
const seconds = Number(args.seconds);
const inFlight = Number(args["in-flight"]);
const channels = Number(args.channels);
const payload = Buffer.alloc(150, "x");
const keys = Array.from({ length: channels }, (_, i) => `2:group-${i}`);
const run = Date.now().toString(36);

interface Figure {
  readonly perSecond: number;
  /** Of the whole process, all threads. */
  readonly cpuUs: number;
  /** Of the main thread alone. */
  readonly mainUs: number;
}

/** Keeps `inFlight` calls of `send` going for `seconds`. */
async function measure(send: (i: number) => Promise<unknown>): Promise<Figure> {
  let next = 0;
  let stopAt = performance.now() + 500;
  const lane = async () => {
    while (performance.now() < stopAt) await send(next++);
  };
  const all = () => Promise.all(Array.from({ length: inFlight }, lane));
  await all(); // warm up
  const before = next;
  const cpu = process.cpuUsage();
  const main = mainThreadUs();
  const started = performance.now();
  stopAt = started + seconds * 1000;
  await all();
  const ms = performance.now() - started;
  const count = next - before;
  const { user, system } = process.cpuUsage(cpu);
  return {
    perSecond: (count / ms) * 1000,
    cpuUs: (user + system) / count,
    mainUs: (mainThreadUs() - main) / count,
  };
}

/** CPU time of this thread; NaN where the system does not tell. */
function mainThreadUs(): number {
  try {
    const file = `/proc/self/task/${process.pid}/schedstat`;
    return Number(readFileSync(file, "utf8").split(" ")[0]) / 1000;
  } catch {
    return Number.NaN;
  }
}

function draft(i: number): MessageDraft {
  const key = keys[i % channels] ?? "2:none";
  return {
    key,
    channel: { id: key.slice(2), type: 2 },
    fromUid: `user-${i % 1000}`,
    clientMsgNo: args["no-dedupe"]
      ? ""
      : `${run}-5f1c6c1e-${i.toString(16).padStart(12, "0")}`,
    header: { noPersist: false, redDot: true },
    expireS: 0,
    streamNo: undefined,
    tagKey: undefined,
    payload,
    origin: undefined,
    recipients: undefined,
    permission: "granted",
  };
}

async function measureStore(folder: string): Promise<Figure> {
  const store = createEmbeddedStore({
    path: folder,
    durability: args.durability === "disk" ? "disk" : "process",
    checkpointMs: Number(args["checkpoint-ms"]),
    maxTailBytes: 256 * 1024 * 1024,
    maxTailRecords: 2_000_000,
    segmentBytes: 64 * 1024 * 1024,
    dedupeWindowS: 86_400,
    retentionS: 0,
    maxChannelMessages: Number(args.keeps),
    sweepIntervalMs: 1000,
    maxStreamBytes: 1_048_576,
    maxActiveStreamBytes: 268_435_456,
    maxInbox: 1000,
    inboxTtlS: 604_800,
    publisher: { publish() {} },
    clock: Date.now,
    onProblem: (error, what) => print(`${what}: ${error.message}`),
    onLost(error) {
      throw error;
    },
  });
  await store.start();
  let worstMs = 0;
  let last = performance.now();
  const watch = setInterval(() => {
    const now = performance.now();
    worstMs = Math.max(worstMs, now - last - 5);
    last = now;
  }, 5);
  const figure = await measure((i) => store.append(draft(i)));
  clearInterval(watch);
  const { checkpoints, tailRecords } = store.stats();
  print(
    `  ${checkpoints} checkpoints, ${tailRecords} records in the tail at the end, longest event-loop turn ${worstMs.toFixed(1)} ms`,
  );
  await store.close();
  return figure;
}

async function measureLmdb(folder: string): Promise<Figure> {
  const env = open({ path: folder, maxDbs: 4 });
  const log = env.openDB<Buffer, Buffer>({
    name: "log",
    encoding: "binary",
    keyEncoding: "binary",
  });
  const dedupe = env.openDB<number[], string>({ name: "dedupe" });
  const value = Buffer.alloc(250, 1);
  const figure = await measure(async (i) => {
    const key = Buffer.allocUnsafe(12);
    key.writeUIntBE(i % channels, 0, 6);
    key.writeUIntBE(Math.floor(i / channels), 6, 6);
    const { key: channel, fromUid, clientMsgNo } = draft(i);
    const committed = log.put(key, value);
    if (!args["no-dedupe"])
      void dedupe.put(`${channel}\n${fromUid}\n${clientMsgNo}`, [i]);
    await committed;
    if (args.durability === "disk") await env.flushed;
  });
  await env.close();
  return figure;
}

function print(line: string): void {
  process.stdout.write(`${line}\n`);
}

function show(name: string, { perSecond, cpuUs, mainUs }: Figure): void {
  print(
    `${name}: ${Math.round(perSecond)} messages/s; CPU per message ${mainUs.toFixed(2)} µs in the main thread, ${cpuUs.toFixed(2)} µs in all`,
  );
}

const folder = mkdtempSync(join(tmpdir(), "jindou-append-"));
try {
  const store = await measureStore(join(folder, "store"));
  show("journal, then LMDB", store);
  const lmdb = await measureLmdb(join(folder, "lmdb"));
  show("LMDB alone", lmdb);
  print(`ratio: ${(store.perSecond / lmdb.perSecond).toFixed(1)}`);
} finally {
  rmSync(folder, { recursive: true, force: true });
}
