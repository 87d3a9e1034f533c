// Stores imported messages with their seqs, and the phase of the import. The rows are written
// directly to the database: the WAL and the memtable have no records while an import is open.

import { BrokerError } from "../../../broker/errors.ts";
import { type ChannelKey, clientMsgNoOf, type Message } from "../../../broker/model.ts";
import type {
  Clock,
  ImportedMessage,
  ImportPhase,
  ImportState,
  ImportStore,
  ImportVerdict,
  LineKind,
} from "../../../broker/ports.ts";
import { IMPORTED_HEADER, isSameMessage, mayBeRemoved } from "../../imported.ts";
import type { ChannelRows } from "../engine/channel-rows.ts";
import { fieldsOf, transact } from "../engine/database.ts";
import { type FlushPorts, phases } from "../engine/flush.ts";
import type { LogRows } from "../engine/log-rows.ts";
import type { MemtableChannel, MemtableRecord } from "../engine/memtable.ts";
import {
  countsPermanently,
  decodeRecord,
  encodeRecord,
  MESSAGE_RECORD,
  maxRecordBytes,
  peekTimes,
} from "../engine/record.ts";
import type { Tables } from "../engine/tables.ts";
import { putLastChangeId } from "./conversation-rows.ts";
import type { DedupeIndex } from "./dedupe.ts";

const VERSION = 1;
const STATE = "import";
const NUMBER_BYTES = 6;
const SOURCE_BYTES = 8;
/** Empty parts of a flush that writes only the messages of a channel. */
const NOTHING_ELSE = {
  streams: { *puts() {}, finish() {} },
  logs: { *frames() {}, *heads() {}, finish() {} },
  events: { *rows() {}, finish() {} },
};

interface ImportPorts extends Omit<FlushPorts, "dedupe"> {
  readonly tables: Tables;
  readonly rows: ChannelRows;
  readonly logRows: LogRows;
  readonly dedupe: DedupeIndex;
  readonly ids: { next(nowMs: number): number };
  readonly conversationRows: FlushPorts["conversationRows"] & {
    addNew(key: ChannelKey): void;
    removeStored(
      flushed: readonly { readonly channel: { readonly key: ChannelKey } }[],
      inMemory: (key: ChannelKey) => unknown,
    ): void;
  };
  readonly clock: Clock;
  /** `Infinity` means that messages are never removed by age. */
  readonly retentionMs: number;
  /** 0 means no limit. */
  readonly maxChannelMessages: number;
}

interface ImportedHead {
  readonly seq: number;
  readonly timestampMs: number;
}

const NOTHING: ImportedHead = { seq: 0, timestampMs: 0 };

export function importStateIn({ meta }: Pick<Tables, "meta">): ImportState {
  const row = meta.get(STATE);
  if (row === undefined) return { phase: "none", stored: {} };
  const [phase, stored] = fieldsOf(row, VERSION);
  return { phase: phase as ImportPhase, stored: stored as ImportState["stored"] }; // see `#put`
}

/**
 * Returns the seq and time of a channel's newest imported message. Both are 0 if the channel has no
 * imported message.
 */
export function importedHead(
  { imported }: Pick<Tables, "imported">,
  key: ChannelKey,
): ImportedHead {
  const stored = imported.get(key);
  if (stored === undefined) return NOTHING;
  const [seq, timestampMs] = fieldsOf(stored, VERSION);
  return { seq: Number(seq), timestampMs: Number(timestampMs) };
}

/**
 * Removes the rows of the ids that messages had at their source. Must be called inside `commit`.
 */
export function removeLabels(
  { labels }: Pick<Tables, "labels">,
  number: number,
  sourceIds: readonly (bigint | undefined)[],
): void {
  for (const sourceId of sourceIds)
    if (sourceId !== undefined) void labels.remove(labelKey(number, sourceId));
}

function labelKey(number: number, sourceId: bigint): Buffer {
  const key = Buffer.allocUnsafe(NUMBER_BYTES + SOURCE_BYTES);
  key.writeUIntBE(number, 0, NUMBER_BYTES);
  key.writeBigUInt64BE(sourceId, NUMBER_BYTES);
  return key;
}

function labelValue(seq: number): Buffer {
  const value = Buffer.allocUnsafe(1 + NUMBER_BYTES);
  value[0] = VERSION;
  value.writeUIntBE(seq, 1, NUMBER_BYTES);
  return value;
}

export class Imports implements Omit<ImportStore, "importPosition"> {
  readonly #ports: ImportPorts;
  #hasMessages: boolean;

  constructor(ports: ImportPorts) {
    this.#ports = ports;
    this.#hasMessages = isNotEmpty(ports.tables.imported);
  }

  /** Returns the seq of the channel's newest imported message, 0 if no message was imported. */
  importedSeq(key: ChannelKey): number {
    return this.#hasMessages ? importedHead(this.#ports.tables, key).seq : 0;
  }

  async importState(): Promise<ImportState> {
    return importStateIn(this.#ports.tables);
  }

  #put({ phase, stored }: ImportState): void {
    void this.#ports.tables.meta.put(STATE, [VERSION, phase, stored]);
  }

  changeImportPhase(from: readonly ImportPhase[], to: ImportPhase): Promise<ImportPhase> {
    return transact(this.#ports.tables, () => {
      const state = importStateIn(this.#ports.tables);
      if (from.includes(state.phase)) this.#put({ ...state, phase: to });
      return state.phase;
    });
  }

  countImported(lines: ImportState["stored"]): Promise<void> {
    return transact(this.#ports.tables, () => {
      const state = importStateIn(this.#ports.tables);
      const stored = { ...state.stored };
      for (const [kind, count] of Object.entries(lines) as [LineKind, number][])
        stored[kind] = (stored[kind] ?? 0) + count;
      this.#put({ ...state, stored });
    });
  }

  async storedData(): Promise<string | undefined> {
    const { tables, memtable } = this.#ports;
    if (memtable.records > 0) return "messages";
    const kinds = [
      ["channels", tables.channels],
      ["channel members", tables.members],
      ["channel lists", tables.lists],
      ["user tokens", tables.devices],
      ["messages", tables.heads],
      ["read positions", tables.positions],
      ["commands", tables.inboxes],
      ["system accounts", tables.systemUids],
      ["streams", tables.logNames],
    ] as const;
    return kinds.find(([, table]) => isNotEmpty(table))?.[0];
  }

  async importMessages(
    key: ChannelKey,
    messages: readonly ImportedMessage[],
  ): Promise<readonly ImportVerdict[]> {
    const { tables, conversationRows, memtable } = this.#ports;
    const existing = memtable.peek(key);
    if (existing !== undefined && (existing.log.length > 0 || existing.uncommitted > 0))
      throw new BrokerError("unavailable", {
        message: "The channel has messages that were not imported. Import into an empty store",
      });
    if (this.#ports.rows.get(key) === undefined) conversationRows.addNew(key);
    const { verdicts, row } = await transact(tables, () => this.#store(key, messages));
    if (row === undefined) return verdicts;
    this.#hasMessages = true;
    memtable.refresh(key, row);
    conversationRows.removeStored([{ channel: { key } }], (other) => memtable.peek(other));
    return verdicts;
  }

  #store(key: ChannelKey, messages: readonly ImportedMessage[]) {
    const { tables, rows, ids, clock, dedupe } = this.#ports;
    const nowMs = clock();
    const before = rows.get(key);
    const number = before?.number ?? rows.nextNumber();
    let { head = 0, counted = 0, newestId = 0 } = before ?? {};
    let { timestampMs: newestMs } = importedHead(tables, key);
    const channel = { ...emptyChannel(key), number };
    const log: MemtableRecord[] = [];
    let previousMs: number | undefined;
    const verdicts = messages.map((message): ImportVerdict => {
      if (message.messageSeq <= head) {
        previousMs ??= this.#timeBefore(number, message.messageSeq);
        const verdict = this.#compare(number, message, { head, beforeMs: previousMs, nowMs });
        previousMs = Math.max(previousMs, message.timestampMs);
        return verdict;
      }
      newestMs = Math.max(newestMs, message.timestampMs);
      const stored = toMessage(key, message, ids.next(nowMs), newestMs);
      if (countsPermanently(true, message)) counted += 1;
      head = message.messageSeq;
      newestId = stored.messageId;
      previousMs = newestMs;
      const isDeduped = message.clientMsgNo !== "" && dedupe.isInWindow(stored, nowMs);
      if (isDeduped) dedupe.addToFilter(stored);
      const bytes = Buffer.allocUnsafe(maxRecordBytes(stored));
      const record = {
        kind: MESSAGE_RECORD,
        message: stored,
        dedupe: isDeduped,
        counted,
        isStream: false,
      } as const;
      const end = encodeRecord(bytes, 0, record);
      log.push({
        channel,
        messageSeq: head,
        hash: 0,
        next: undefined,
        committed: true,
        bytes,
        start: 0,
        end,
      });
      void tables.labels.put(labelKey(number, BigInt(message.sourceId)), labelValue(head));
      return "stored";
    });
    if (log.length === 0) return { verdicts, row: undefined };
    const row = { number, head, counted, newestId };
    const flush = { channel, head, counted, newestId, log, dedupeOnly: [] };
    for (const puts of phases(this.#ports, { channels: [flush], ...NOTHING_ELSE }, false))
      for (const _ of puts); // the iteration puts the rows
    rows.putCounter();
    void tables.imported.put(key, [VERSION, head, newestMs]);
    putLastChangeId(tables, newestId);
    this.#ports.trimQueue.addIfGrown(flush);
    return { verdicts, row };
  }

  /**
   * Returns the time of the newest stored message before `seq`, or 0 if no earlier message is
   * stored.
   */
  #timeBefore(number: number, seq: number): number {
    for (const { bytes } of this.#ports.logRows.scanReverse(number, 1, seq - 1))
      return peekTimes(bytes).timestampMs;
    return 0;
  }

  #compare(
    number: number,
    message: ImportedMessage,
    {
      head,
      beforeMs,
      nowMs,
    }: { readonly head: number; readonly beforeMs: number; readonly nowMs: number },
  ): ImportVerdict {
    const { messageSeq: seq } = message;
    const record = this.#ports.logRows.firstFrom(number, seq, seq + 1);
    if (record !== undefined) {
      const { message: stored } = decodeRecord(record.bytes);
      return isSameMessage(stored, message, beforeMs) ? "unchanged" : "conflict";
    }
    return mayBeRemoved(message, head, this.#ports, nowMs) ? "unchanged" : "conflict";
  }

  async seqOfSource(key: ChannelKey, sourceId: string): Promise<number | undefined> {
    const { tables, rows } = this.#ports;
    const number = rows.get(key)?.number;
    if (number === undefined) return undefined;
    return tables.labels.get(labelKey(number, BigInt(sourceId)))?.readUIntBE(1, NUMBER_BYTES);
  }
}

function isNotEmpty(table: { getKeys(options: { limit: number }): Iterable<unknown> }): boolean {
  for (const _ of table.getKeys({ limit: 1 })) return true;
  return false;
}

function toMessage(
  key: ChannelKey,
  imported: ImportedMessage,
  messageId: number,
  timestampMs: number,
): Message {
  const { channel, fromUid, clientMsgNo, messageSeq, sourceId, expireS, passthrough, payload } =
    imported;
  return {
    messageId,
    messageSeq,
    key,
    channel,
    fromUid,
    clientMsgNo: clientMsgNo || clientMsgNoOf(messageId),
    timestampMs,
    header: IMPORTED_HEADER,
    expireS,
    streamNo: undefined,
    tagKey: undefined,
    passthrough,
    sourceId,
    payload,
    stream: undefined,
  };
}

function emptyChannel(key: ChannelKey): MemtableChannel {
  return {
    key,
    number: 0,
    partition: -1,
    assigned: 0,
    counted: 0,
    head: 0,
    headCounted: 0,
    newestId: 0,
    newest: undefined,
    log: [],
    dedupeOnly: [],
    uncommitted: 0,
  };
}
