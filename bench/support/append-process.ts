// A process that appends messages to a build's embedded store, or to LMDB alone, and prints their
// cost. The number of messages is fixed, and the CPU time includes the flush of the memtable into
// the database, so that the compared builds do the same work.

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
  /** True if each message is sent to a random channel, false if the channels are used in turn. */
  readonly isRandom: boolean;
  /**
   * Lifetime in seconds of every third message. The others never expire. 0 means that no message
   * expires.
   */
  readonly expireS: number;
  readonly durability: "process" | "disk";
  /**
   * Number of messages for each second of the plan's duration, about the rate of a slow
   * machine.
   */
  readonly rate: number;
}

export interface AppendFigures {
  /** CPU time of all threads for each message, including the flush into the database. */
  readonly cpuUs: number;
  readonly perSecond: number;
  readonly longestTurnMs: number;
  /**
   * Heap and external memory for each message that is not in the database yet. 0 for LMDB alone.
   */
  readonly heldBytes: number;
}

interface AppendRequest {
  readonly folder: string;
  readonly setting: Setting;
  readonly messages: number;
  /** Number of messages that are appended to measure their memory use. */
  readonly heldMessages: number;
  /** Path of the store module of the build, or `undefined` to measure LMDB alone. */
  readonly module: string | undefined;
}

/** Starts the process, which prints one line of JSON (see `AppendFigures`). */
export function startAppend(workbench: Workbench, request: AppendRequest): Child {
  return workbench.spawn({
    name: `Appending with ${request.setting.title}`,
    command: process.execPath,
    args: [
      ...process.execArgv, // needed to run TypeScript
      "--expose-gc",
      fileURLToPath(import.meta.url),
      JSON.stringify(request),
    ],
  });
}

const WARMUP = 0.2;
const PAYLOAD = Buffer.alloc(150, "x");
const RESOLUTION_MS = 1;
const NEVER_MS = 2 ** 31 - 1;

/** A store, or LMDB alone. */
interface Target {
  append(draft: MessageDraft): Promise<unknown>;
  /** Flushes all appended messages into the database. */
  checkpoint(): Promise<void>;
  close(): Promise<void>;
}

const [, script, request] = process.argv;
if (script === fileURLToPath(import.meta.url) && request !== undefined)
  await measure(JSON.parse(request) as AppendRequest);

async function measure(request: AppendRequest): Promise<void> {
  const { setting, messages, module } = request;
  const heldBytes = module === undefined ? 0 : await measureHeldBytes(request);
  const target = await openTarget(request, "measured");
  const drafts = generateDrafts(setting);
  await appendAll(target, drafts, setting.inFlight, messages * WARMUP);
  await target.checkpoint();
  const loopDelay = monitorEventLoopDelay({ resolution: RESOLUTION_MS });
  loopDelay.enable();
  const cpu = process.cpuUsage();
  const started = performance.now();
  await appendAll(target, drafts, setting.inFlight, messages);
  const ms = performance.now() - started;
  await target.checkpoint();
  const { user, system } = process.cpuUsage(cpu);
  loopDelay.disable();
  await target.close();
  const figures: AppendFigures = {
    cpuUs: (user + system) / messages,
    perSecond: (messages / ms) * 1000,
    longestTurnMs: loopDelay.max / 1e6 - RESOLUTION_MS,
    heldBytes,
  };
  process.stdout.write(`${JSON.stringify(figures)}\n`);
}

/**
 * Measures the memory of messages in a store that never flushes by itself. Must run first, because
 * garbage from other measurements would distort the result.
 */
async function measureHeldBytes(request: AppendRequest): Promise<number> {
  const { setting, heldMessages } = request;
  const target = await openTarget(request, "held", NEVER_MS);
  const drafts = generateDrafts(setting);
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
  let remaining = Math.round(messages);
  const sender = async () => {
    while (remaining-- > 0) await target.append(drafts.next().value);
  };
  await Promise.all(Array.from({ length: inFlight }, sender));
}

function* generateDrafts(setting: Setting): Generator<MessageDraft, never> {
  const { channels, isRandom, expireS } = setting;
  let random = 1;
  for (let i = 0; ; i++) {
    random = (random * 48_271) % 0x7fff_ffff; // the same sequence in every run
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
  { folder, setting, module }: AppendRequest,
  name: string,
  checkpointMs?: number,
): Promise<Target> {
  const path = join(folder, name);
  return module === undefined
    ? openLmdb(path, setting)
    : openStore(path, { module, setting, ...(checkpointMs !== undefined && { checkpointMs }) });
}

async function openStore(
  path: string,
  {
    module,
    setting,
    checkpointMs,
  }: {
    readonly module: string;
    readonly setting: Setting;
    /** Absent for the default of the build. */
    readonly checkpointMs?: number;
  },
): Promise<Target> {
  const { createEmbeddedStore } = (await import(
    pathToFileURL(module).href
  )) as typeof import("../../src/store/embedded/store.ts");
  const store = createEmbeddedStore({
    path,
    durability: setting.durability,
    ...(checkpointMs !== undefined && { checkpointMs }),
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

/**
 * Opens LMDB with a log and a table of dedupe records. An append resolves after its commit or, with
 * durability `disk`, after the flush to disk.
 */
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
