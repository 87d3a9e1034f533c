// A process that appends messages to a build's embedded store, or to LMDB alone, and prints what
// they cost. The number of messages is fixed, and what is left in memory is moved into the database
// before the clocks are read, so that both builds did the same work.

import { join } from "node:path";
import { monitorEventLoopDelay } from "node:perf_hooks";
import { fileURLToPath, pathToFileURL } from "node:url";
import { open } from "lmdb";
import type { MessageDraft } from "../../src/broker/ports.ts";
import type { Child, Workbench } from "./workbench.ts";

export interface Setting {
  readonly title: string;
  readonly inFlight: number;
  readonly channels: number;
  /** Each message goes to any of them, else to all in turn. */
  readonly isRandom: boolean;
  /** Of every third message; 0: none expires. */
  readonly expireS: number;
  readonly durability: "process" | "disk";
  /** Messages for each second of the plan: about what a slow machine takes. */
  readonly rate: number;
}

export interface AppendFigures {
  /** Of all threads, with the moves into the database. */
  readonly cpuUs: number;
  readonly perSecond: number;
  readonly longestTurnMs: number;
  /**
   * By which heap and external memory grow with each message that is not in the database; 0: of
   * LMDB alone.
   */
  readonly heldBytes: number;
}

interface Order {
  readonly folder: string;
  readonly setting: Setting;
  readonly messages: number;
  /** Appended to see what they hold in memory. */
  readonly heldMessages: number;
  /** Of the build; undefined: LMDB alone. */
  readonly directory: string | undefined;
}

/** Its output is one line of figures. */
export function startAppend(workbench: Workbench, order: Order): Child {
  return workbench.spawn({
    name: `Appending with ${order.setting.title}`,
    command: process.execPath,
    args: [
      ...process.execArgv, // they run TypeScript
      "--expose-gc",
      fileURLToPath(import.meta.url),
      JSON.stringify(order),
    ],
  });
}

const WARMUP = 0.2;
const PAYLOAD = Buffer.alloc(150, "x");
const RESOLUTION_MS = 1;
/** The default of the store. */
const CHECKPOINT_MS = 200;
const NEVER_MS = 2 ** 31 - 1;

/** What takes messages. */
interface Target {
  append(draft: MessageDraft): Promise<unknown>;
  /** Moves everything taken so far into the database. */
  checkpoint(): Promise<void>;
  close(): Promise<void>;
}

const [, script, order] = process.argv;
if (script === fileURLToPath(import.meta.url) && order !== undefined)
  await measure(JSON.parse(order) as Order);

async function measure(order: Order): Promise<void> {
  const { setting, messages, directory } = order;
  const heldBytes = directory === undefined ? 0 : await measureHeld(order);
  const target = await openTarget(order, "measured", CHECKPOINT_MS);
  const drafts = draftsOf(setting);
  await appendAll(target, drafts, setting.inFlight, messages * WARMUP);
  await target.checkpoint();
  const turns = monitorEventLoopDelay({ resolution: RESOLUTION_MS });
  turns.enable();
  const cpu = process.cpuUsage();
  const started = performance.now();
  await appendAll(target, drafts, setting.inFlight, messages);
  const ms = performance.now() - started;
  await target.checkpoint();
  const { user, system } = process.cpuUsage(cpu);
  turns.disable();
  await target.close();
  const figures: AppendFigures = {
    cpuUs: (user + system) / messages,
    perSecond: (messages / ms) * 1000,
    longestTurnMs: turns.max / 1e6 - RESOLUTION_MS,
    heldBytes,
  };
  process.stdout.write(`${JSON.stringify(figures)}\n`);
}

/**
 * In a store that moves nothing into the database by itself, before anything else leaves garbage.
 */
async function measureHeld(order: Order): Promise<number> {
  const { setting, heldMessages } = order;
  const target = await openTarget(order, "held", NEVER_MS);
  const drafts = draftsOf(setting);
  await appendAll(target, drafts, setting.inFlight, 1000);
  const before = memory();
  await appendAll(target, drafts, setting.inFlight, heldMessages);
  const bytes = (memory() - before) / heldMessages;
  await target.close();
  return bytes;
}

function memory(): number {
  globalThis.gc?.();
  const { heapUsed, external } = process.memoryUsage();
  return heapUsed + external;
}

async function appendAll(
  target: Target,
  drafts: Iterator<MessageDraft, never>,
  inFlight: number,
  messages: number,
): Promise<void> {
  let left = Math.round(messages);
  const lane = async () => {
    while (left-- > 0) await target.append(drafts.next().value);
  };
  await Promise.all(Array.from({ length: inFlight }, lane));
}

function* draftsOf(setting: Setting): Generator<MessageDraft, never> {
  const { channels, isRandom, expireS } = setting;
  let random = 1;
  for (let i = 0; ; i++) {
    random = (random * 48_271) % 0x7fff_ffff; // the same in every run
    const id = `group-${(isRandom ? random : i) % channels}`;
    yield {
      key: `2:${id}`,
      channel: { id, type: 2 },
      fromUid: `user-${i % 1000}`,
      clientMsgNo: `${(random * i).toString(16).padStart(20, "0")}-${i}`,
      header: { noPersist: false, redDot: true },
      expireS: i % 3 === 0 ? expireS : 0,
      streamNo: undefined,
      tagKey: undefined,
      payload: PAYLOAD,
      origin: undefined,
      recipients: undefined,
      permission: "granted",
    };
  }
}

function openTarget(
  { folder, setting, directory }: Order,
  name: string,
  checkpointMs: number,
): Promise<Target> {
  const path = join(folder, name);
  return directory === undefined
    ? openLmdb(path, setting)
    : openStore(path, { directory, setting, checkpointMs });
}

async function openStore(
  path: string,
  {
    directory,
    setting,
    checkpointMs,
  }: {
    readonly directory: string;
    readonly setting: Setting;
    readonly checkpointMs: number;
  },
): Promise<Target> {
  const file = join(directory, "dist/store/embedded/store.js");
  const { createEmbeddedStore } = (await import(
    pathToFileURL(file).href
  )) as typeof import("../../src/store/embedded/store.ts");
  const store = createEmbeddedStore({
    path,
    durability: setting.durability,
    checkpointMs,
    maxMemtableBytes: 256 * 1024 * 1024,
    maxMemtableRecords: 2_000_000,
    segmentBytes: 64 * 1024 * 1024,
    dedupeWindowS: 86_400,
    retentionS: 0,
    maxChannelMessages: 0,
    sweepIntervalMs: NEVER_MS,
    maxStreamBytes: 1_048_576,
    maxActiveStreamBytes: 268_435_456,
    maxInbox: 1000,
    inboxTtlS: 604_800,
    publisher: { publish() {} },
    clock: Date.now,
    onError(error) {
      throw error;
    },
    onLost(error) {
      throw error;
    },
  });
  await store.start();
  return store;
}

/** A log and what retries are known by, as rows of LMDB, answered after the commit. */
async function openLmdb(path: string, setting: Setting): Promise<Target> {
  const env = open({ path, maxDbs: 4 });
  const log = env.openDB<Buffer, string>({ name: "log", encoding: "binary" });
  const dedupe = env.openDB<number[], string>({ name: "dedupe" });
  const value = Buffer.alloc(250, 1);
  let seq = 0;
  return {
    async append({ key, fromUid, clientMsgNo }) {
      const at = ++seq;
      const committed = log.put(`${key}\n${String(at).padStart(12, "0")}`, value);
      void dedupe.put(`${key}\n${fromUid}\n${clientMsgNo}`, [at]);
      await committed;
      if (setting.durability === "disk") await env.flushed;
    },
    async checkpoint() {
      await env.committed;
    },
    close: () => env.close(),
  };
}
