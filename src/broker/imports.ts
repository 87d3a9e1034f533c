// The import of another server's data. Moves the import through its phases, which all nodes adopt,
// and stores the imported lines. While an import is open, no node serves clients, and writing calls
// that do not belong to the import are refused. Therefore no imported data is pushed, and no reader
// sees a channel whose seqs have gaps that will be filled later.

import { createHash } from "node:crypto";
import { Semaphore } from "../lib/semaphore.ts";
import { BrokerError, type ErrorCode, isTransient } from "./errors.ts";
import {
  type ChannelInfo,
  type ChannelKey,
  type ChannelRef,
  channelKey,
  clientMsgNoOf,
  type DeviceFlag,
  type DeviceLevel,
} from "./model.ts";
import type {
  ChannelList,
  ChannelStore,
  Cluster,
  ImportedMessage,
  ImportPhase,
  ImportState,
  ImportStore,
  LineKind,
  MessageStore,
  SystemAccountStore,
  UserStore,
} from "./ports.ts";
import { hashesEqual, hashToken } from "./tokens.ts";

export type ImportLine =
  | { readonly kind: "user"; readonly uid: string; readonly isBanned: boolean | undefined }
  | {
      readonly kind: "token";
      readonly uid: string;
      readonly flag: DeviceFlag;
      readonly level: DeviceLevel;
      /** "" if the device was logged out. */
      readonly token: string;
    }
  | { readonly kind: "channel"; readonly info: ChannelInfo }
  | {
      readonly kind: "members";
      readonly channel: ChannelRef;
      readonly uids: readonly string[];
      /** True if the uids replace the members. */
      readonly reset: boolean;
    }
  | {
      readonly kind: "list";
      readonly channel: ChannelRef;
      readonly list: ChannelList;
      readonly uids: readonly string[];
      readonly reset: boolean;
    }
  | { readonly kind: "message"; readonly message: ImportedMessage }
  | {
      readonly kind: "position";
      readonly uid: string;
      readonly channel: ChannelRef;
      readonly readSeq: number;
      readonly deletedSeq: number;
    }
  | { readonly kind: "system_uid"; readonly uid: string };

export type LineResult =
  | "stored"
  | "unchanged"
  | { readonly code: ErrorCode | "import_conflict"; readonly message: string };

/**
 * Outcome of opening or closing an import.
 *
 *     done     the import is now open (after `open`) or closed (after `finish`)
 *     refused  the store already contains data of the kind `what`
 *     closed   `open` failed because the import was closed, or `finish` because no import is open
 */
type ImportOutcome =
  | { readonly kind: "done" | "closed" }
  | { readonly kind: "refused"; readonly what: string };

/** Summary of a channel's messages in the store, for comparison with the source server. */
interface ImportedRange {
  /** Number of messages in the range, without messages beyond the history limits. */
  readonly count: number;
  /**
   * Last seq that the summary covers. Lower than the requested last seq if the range has more than
   * `MAX_COMPARED` messages, or if the channel ends earlier.
   */
  readonly throughSeq: number;
  readonly headSeq: number;
  /** Time of the newest message in Unix milliseconds, or 0 if that message is no longer stored. */
  readonly headTimestampMs: number;
  /** SHA-256 over the messages in hex (see `addToChecksum`). */
  readonly checksum: string;
}

interface ImportPorts {
  readonly store: UserStore &
    ChannelStore &
    SystemAccountStore &
    ImportStore &
    Pick<MessageStore, "readMessages" | "headSeq">;
  readonly cluster: Pick<Cluster, "heartbeat" | "nodes" | "deliversAll">;
  /** Ends all client sessions, and gives the calls in progress a fixed time to finish. */
  readonly quiesce: () => Promise<void>;
  readonly onError: (error: unknown, what: string) => void;
  readonly onLines?: (results: readonly LineResult[]) => void;
}

const POLL_MS = 1000;
const WAIT_STEP_MS = 50;
const MAX_WAIT_MS = 30_000;
const CALLS_AT_ONCE = 32;
const MAX_COMPARED = 10_000;
const PAGE = 500;
const PAGE_BYTES = 4 * 1024 * 1024;

const CONFLICT: LineResult = {
  code: "import_conflict",
  message:
    "The message_seq belongs to a different message, or is lower than the channel's newest message_seq. Import into an empty store",
};

const DISBANDED: LineResult = {
  code: "import_conflict",
  message: "The channel was disbanded earlier, which cannot be undone. Import into an empty store",
};

export class Imports {
  readonly #ports: ImportPorts;
  readonly #calls = new Semaphore(CALLS_AT_ONCE);
  /** Phase of the import, as this node last read it from the store. */
  #phase: ImportPhase = "none";
  /** Phase that this node has adopted and announces to the other nodes. */
  #adopted: ImportPhase = "none";
  #adopting: Promise<void> = Promise.resolve();
  #requests = 0;
  #onIdle = () => {};
  #timer: NodeJS.Timeout | undefined;
  #refreshing: Promise<void> | undefined;

  constructor(ports: ImportPorts) {
    this.#ports = ports;
  }

  get adopted(): ImportPhase {
    return this.#adopted;
  }

  /** True if the node refuses clients, and writing calls that do not belong to the import. */
  get isUnderway(): boolean {
    return this.#phase === "opening" || this.#phase === "open" || this.#phase === "closing";
  }

  /** Reads the current phase. Must be called before the node serves clients. */
  async start(): Promise<void> {
    const { phase } = await this.#ports.store.importState();
    this.#phase = phase;
    this.#adopted = phase;
    if (this.#ports.cluster.deliversAll) return;
    this.#timer = setInterval(() => {
      this.#refresh().catch((error: unknown) => {
        if (!isTransient(error))
          this.#ports.onError(error, "Could not read the state of the import");
      });
    }, POLL_MS).unref();
  }

  async close(): Promise<void> {
    clearInterval(this.#timer);
    await this.#refreshing?.catch(() => undefined);
  }

  state(): Promise<ImportState> {
    return this.#ports.store.importState();
  }

  /**
   * Opens the import, or continues an interrupted attempt. Also completes an interrupted close,
   * because no node serves clients before the import is closed. May throw `unavailable`.
   */
  async open(): Promise<ImportOutcome> {
    const { store } = this.#ports;
    await this.#refresh();
    if (this.#phase === "open") return { kind: "done" };
    if (this.#phase === "closing") await this.finish();
    if (this.#phase === "closed") return { kind: "closed" };
    const dataBefore = this.#phase === "none" ? await store.storedData() : undefined;
    if (dataBefore !== undefined) return { kind: "refused", what: dataBefore };
    await this.#change(["none"], "opening");
    await this.#awaitNodes("opening");
    // The check is repeated, because a call that was in progress may have stored data.
    const what = await store.storedData();
    if (what !== undefined) {
      await this.#change(["opening"], "none");
      return { kind: "refused", what };
    }
    await this.#change(["opening"], "open");
    return this.#outcome("open");
  }

  /** Closes the import permanently. When the call resolves, no node accepts further lines. */
  async finish(): Promise<ImportOutcome> {
    await this.#change(["open"], "closing");
    if (this.#phase !== "closing") return this.#outcome("closed");
    await this.#awaitNodes("closing");
    await this.#change(["closing"], "closed");
    // The import is closed even if a node does not announce the phase in time.
    await this.#awaitNodes("closed").catch(() => undefined);
    return { kind: "done" };
  }

  /**
   * Stores lines in order. Consecutive lines of one kind are stored concurrently if they concern
   * different objects. Returns the result of each line once all lines are durable. Returns
   * `undefined` if no import is open. May throw `unavailable`, `overloaded`, `disk_full` or
   * `too_late`. Some of the lines may then have been stored.
   */
  async apply(lines: readonly ImportLine[]): Promise<readonly LineResult[] | undefined> {
    if (this.#phase !== "open") await this.#refresh();
    if (this.#phase !== "open") return undefined;
    this.#requests += 1;
    try {
      const results = await this.#storeAll(lines);
      await this.#count(lines, results);
      this.#ports.onLines?.(results);
      return results;
    } finally {
      this.#requests -= 1;
      if (this.#requests === 0) this.#onIdle();
    }
  }

  /** Returns a summary of at most `MAX_COMPARED` messages from `fromSeq` through `toSeq`. */
  async range(key: ChannelKey, fromSeq: number, toSeq: number): Promise<ImportedRange> {
    const { store } = this.#ports;
    const headSeq = await store.headSeq(key);
    const hash = createHash("sha256");
    const lastSeq = Math.min(toSeq, headSeq);
    let [count, next] = [0, fromSeq];
    while (next <= lastSeq && count < MAX_COMPARED) {
      const limit = Math.min(PAGE, MAX_COMPARED - count);
      const { messages, more } = await store.readMessages(key, {
        ...{ fromSeq: next, toSeq: lastSeq, limit, reverse: false },
        maxBytes: PAGE_BYTES,
      });
      for (const message of messages) {
        const isOwn = message.clientMsgNo !== clientMsgNoOf(message.messageId);
        addToChecksum(hash, { ...message, clientMsgNo: isOwn ? message.clientMsgNo : "" });
      }
      count += messages.length;
      next = more ? (messages.at(-1)?.messageSeq ?? lastSeq) + 1 : lastSeq + 1;
    }
    const newest = { fromSeq: Math.max(1, headSeq), toSeq: headSeq, limit: 1, reverse: true };
    const { messages } = await store.readMessages(key, { ...newest, maxBytes: PAGE_BYTES });
    const headTimestampMs = messages[0]?.timestampMs ?? 0;
    const checksum = hash.digest("hex");
    return { count, throughSeq: next - 1, headSeq, headTimestampMs, checksum };
  }

  /** Returns `done` if the import is in `phase`, otherwise `closed` (see `ImportOutcome`). */
  #outcome(phase: ImportPhase): ImportOutcome {
    return { kind: this.#phase === phase ? "done" : "closed" };
  }

  #refresh(): Promise<void> {
    this.#refreshing ??= this.#ports.store
      .importState()
      .then(({ phase }) => this.#adopt(phase))
      .finally(() => {
        this.#refreshing = undefined;
      });
    return this.#refreshing;
  }

  async #change(from: readonly ImportPhase[], to: ImportPhase): Promise<void> {
    const before = await this.#ports.store.changeImportPhase(from, to);
    await this.#adopt(from.includes(before) ? to : before);
  }

  #adopt(phase: ImportPhase): Promise<void> {
    this.#phase = phase;
    this.#adopting = this.#adopting.then(async () => {
      if (phase !== this.#phase || phase === this.#adopted) return;
      if (this.isUnderway && this.#adopted === "none") await this.#ports.quiesce();
      if (phase === "closing") await this.#idle();
      this.#adopted = phase;
    });
    return this.#adopting;
  }

  async #idle(): Promise<void> {
    if (this.#requests === 0) return;
    await new Promise<void>((resolve) => {
      this.#onIdle = resolve;
    });
    this.#onIdle = () => {};
  }

  /** Waits until every live node has adopted the phase. Throws `unavailable` after a time-out. */
  async #awaitNodes(phase: ImportPhase): Promise<void> {
    const { cluster } = this.#ports;
    const deadlineMs = performance.now() + MAX_WAIT_MS;
    for (;;) {
      await cluster.heartbeat();
      const late = (await cluster.nodes()).find(({ importPhase }) => importPhase !== phase);
      if (late === undefined) return;
      if (performance.now() >= deadlineMs)
        throw new BrokerError("unavailable", {
          message: `The node ${late.nodeId} has not confirmed the import's new state. Check that it runs the same version as this node, then repeat the call`,
        });
      await new Promise((resolve) => setTimeout(resolve, WAIT_STEP_MS));
    }
  }

  async #storeAll(lines: readonly ImportLine[]): Promise<readonly LineResult[]> {
    const results: LineResult[] = new Array(lines.length);
    for (const batch of batchesOf(lines)) {
      const jobs = [...batch.values()].map((indexes) =>
        this.#calls.run(async () => {
          const some = indexes.map((index) => lines[index]).filter((line) => line !== undefined);
          const stored = await this.#store(some);
          for (const [at, index] of indexes.entries()) results[index] = stored[at] ?? "unchanged";
        }),
      );
      for (const job of await Promise.allSettled(jobs))
        if (job.status === "rejected") throw job.reason;
    }
    return results;
  }

  /** Stores messages of one channel, or one line of another kind. */
  async #store(lines: readonly ImportLine[]): Promise<readonly LineResult[]> {
    const messages = lines.flatMap((line) => (line.kind === "message" ? line.message : []));
    try {
      const [first] = messages;
      if (first === undefined) return await Promise.all(lines.map((line) => this.#storeLine(line)));
      const key = channelKey(first.channel, first.fromUid);
      const verdicts = await this.#ports.store.importMessages(key, messages);
      return verdicts.map((verdict) => (verdict === "conflict" ? CONFLICT : verdict));
    } catch (error) {
      if (!(error instanceof BrokerError) || isTransient(error) || error.code === "internal")
        throw error;
      const { code, message } = error;
      return lines.map(() => ({ code, message }));
    }
  }

  async #storeLine(line: ImportLine): Promise<LineResult> {
    const { store } = this.#ports;
    switch (line.kind) {
      case "user":
        return this.#storeUser(line.uid, line.isBanned);
      case "token":
        return this.#storeToken(line);
      case "channel":
        return this.#storeChannel(line.info);
      case "members":
        return this.#storeMembers(line);
      case "list":
        return this.#storeList(line);
      case "message":
        throw new Error("A message must be stored in a batch, not as a single line");
      case "position": {
        const { uid, channel, readSeq, deletedSeq } = line;
        return asResult(await store.importPosition(uid, channel, { readSeq, deletedSeq }));
      }
      case "system_uid": {
        if ((await store.systemUids()).includes(line.uid)) return "unchanged";
        await store.changeSystemUids("add", [line.uid]);
        return "stored";
      }
    }
  }

  async #storeUser(uid: string, isBanned: boolean | undefined): Promise<LineResult> {
    const { store } = this.#ports;
    if (isBanned === undefined || isBanned === (await store.isBanned(uid))) return "unchanged";
    await store.putBan(uid, isBanned);
    return "stored";
  }

  async #storeToken(line: Extract<ImportLine, { kind: "token" }>): Promise<LineResult> {
    const { uid, flag, level, token } = line;
    const tokenHash = token === "" ? new Uint8Array() : hashToken(token);
    const before = await this.#ports.store.device(uid, flag);
    if (before === undefined && token === "") return "unchanged";
    const isSame =
      before !== undefined &&
      before.level === level &&
      (token === "" ? before.tokenHash.length === 0 : hashesEqual(before.tokenHash, tokenHash));
    if (isSame) return "unchanged";
    await this.#ports.store.putDevice({ uid, flag, level, tokenHash });
    return "stored";
  }

  async #storeChannel(info: ChannelInfo): Promise<LineResult> {
    const { store } = this.#ports;
    if (await store.createChannel(info, [])) return "stored";
    const before = await store.channel(info);
    if (before?.disband && !info.disband) return DISBANDED;
    const { id, type, ...flags } = info;
    const names = Object.keys(flags) as (keyof typeof flags)[];
    if (before !== undefined && names.every((name) => before[name] === flags[name]))
      return "unchanged";
    await store.updateChannel({ id, type }, flags);
    return "stored";
  }

  async #storeMembers(line: Extract<ImportLine, { kind: "members" }>): Promise<LineResult> {
    const { store } = this.#ports;
    const { channel, uids, reset } = line;
    const before = reset ? await store.members(channel) : await store.membersAmong(channel, uids);
    const info = await store.channel(channel);
    if (info === undefined) throw new BrokerError("channel_not_found");
    if (info.disband) throw new BrokerError("channel_disbanded");
    if (hasSameUids(before, uids)) return "unchanged";
    await store.addSubscribers(channel, uids, { membership: "permanent", reset });
    return "stored";
  }

  async #storeList(line: Extract<ImportLine, { kind: "list" }>): Promise<LineResult> {
    const { store } = this.#ports;
    const { channel, list, uids, reset } = line;
    const before = new Set(await store.listed(channel, list));
    const isSame = uids.every((uid) => before.has(uid));
    if (isSame && (!reset || before.size === new Set(uids).size)) return "unchanged";
    const change = { kind: reset ? "replace" : "add", uids } as const;
    if (!(await store.changeList(channel, list, change)))
      throw new BrokerError(
        (await store.channel(channel)) === undefined ? "channel_not_found" : "channel_disbanded",
      );
    return "stored";
  }

  async #count(lines: readonly ImportLine[], results: readonly LineResult[]): Promise<void> {
    const counts: Partial<Record<LineKind, number>> = {};
    for (const [at, { kind }] of lines.entries())
      if (results[at] === "stored") counts[kind] = (counts[kind] ?? 0) + 1;
    if (Object.keys(counts).length > 0) await this.#ports.store.countImported(counts);
  }
}

/** Fields of a message that `addToChecksum` uses. */
type ComparedMessage = Pick<
  ImportedMessage,
  "messageSeq" | "timestampMs" | "fromUid" | "clientMsgNo" | "payload"
>;

/**
 * Adds a message to a checksum: the seq, the time in Unix seconds, the sender, the clientMsgNo and
 * the number of payload bytes, each followed by a newline, and then the payload.
 */
export function addToChecksum(
  hash: { update(data: string | Uint8Array): unknown },
  { messageSeq, timestampMs, fromUid, clientMsgNo, payload }: ComparedMessage,
): void {
  const seconds = Math.floor(timestampMs / 1000);
  hash.update([messageSeq, seconds, fromUid, clientMsgNo, payload.length, ""].join("\n"));
  hash.update(payload);
}

/**
 * Splits lines into batches. A batch maps the name of each object to the indexes of its lines. The
 * objects in a batch are independent of each other. A batch has one line for each object, except
 * that a channel may have several messages, in the order of their seqs.
 */
function* batchesOf(lines: readonly ImportLine[]): Generator<ReadonlyMap<string, number[]>> {
  let batch = new Map<string, number[]>();
  let kind: LineKind | undefined;
  const lastSeqs = new Map<string, number>();
  for (const [index, line] of lines.entries()) {
    const name = nameOf(line);
    const seq = line.kind === "message" ? line.message.messageSeq : 0;
    const indexes = batch.get(name);
    const follows = seq > (lastSeqs.get(name) ?? 0);
    if (line.kind !== kind || (indexes !== undefined && !follows)) {
      if (batch.size > 0) yield batch;
      batch = new Map();
      lastSeqs.clear();
    }
    kind = line.kind;
    lastSeqs.set(name, seq);
    const own = batch.get(name);
    if (own === undefined) batch.set(name, [index]);
    else own.push(index);
  }
  if (batch.size > 0) yield batch;
}

function nameOf(line: ImportLine): string {
  switch (line.kind) {
    case "user":
    case "system_uid":
      return line.uid;
    case "token":
      return `${line.uid}#${line.flag}`;
    case "channel":
      return `${line.info.type}:${line.info.id}`;
    case "members":
    case "list":
      return `${line.channel.type}:${line.channel.id}`;
    case "message":
      return channelKey(line.message.channel, line.message.fromUid);
    case "position":
      return `${line.uid}#${channelKey(line.channel, line.uid)}`;
  }
}

function asResult(isStored: boolean): LineResult {
  return isStored ? "stored" : "unchanged";
}

function hasSameUids(before: readonly string[], uids: readonly string[]): boolean {
  const set = new Set(before);
  return set.size === new Set(uids).size && uids.every((uid) => set.has(uid));
}
