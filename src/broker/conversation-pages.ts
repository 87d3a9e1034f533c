// Divides a user's conversations into pages. Each page except the last has a cursor for the next
// page. The cursor contains the time of the first page. The conversations are sorted by their
// newest message, newest first. Conversations that changed after the time of the first page are
// returned last, in their new state. Therefore no conversation is missing, and only a conversation
// that changed can be returned twice [decisions: Paging of conversations].

import { createHash } from "node:crypto";
import { BrokerError } from "./errors.ts";
import type { Conversation, ConversationHead } from "./model.ts";
import type { ConversationSelection } from "./ports.ts";

export interface Selection {
  readonly heads: readonly ConversationHead[];
  /**
   * Returns the cursor after the first `count` conversations of `heads`, or `undefined` if no
   * conversation follows. `returned` is the state of these conversations in the reply.
   */
  cursorAfter(count: number, returned?: readonly Conversation[]): string | undefined;
}

export interface SelectionQuery {
  readonly uid: string;
  /** Minimum `changedAtMs` of the selected conversations. Ignored if there is a cursor. */
  readonly sinceMs: number;
  readonly limit: number;
  readonly cursor: string | undefined;
  readonly lookBackMs: number;
}

type State = ConversationHead | Conversation;

interface Position {
  readonly sinceMs: number;
  /** Time of the newest change when the first page was read. */
  readonly asOfMs: number;
  /** `prints` contains a hash of every returned conversation that changed at this time or later. */
  readonly printsFromMs: number;
  readonly beforeId: number;
  readonly prints: ReadonlySet<string>;
}

/**
 * Maximum number of prints (hashes of conversations) in a cursor. A cursor that would need more
 * prints contains no prints.
 */
const MAX_PRINTS = 200;
const PRINT_BYTES = 5;
const VERSION = 1;
const CHECK_BYTES = 4;
const NUMBERS = 4;
const HEAD_BYTES = 1 + CHECK_BYTES + NUMBERS * 8;
const MAX_CURSOR_LENGTH = Math.ceil(((HEAD_BYTES + MAX_PRINTS * PRINT_BYTES) * 4) / 3);

/**
 * Selects a page of `heads`, which are sorted by their newest message, newest first. Returns
 * `undefined` if `heads` is incomplete and has too few conversations for the page.
 */
export function selectPage(
  { heads, isComplete, newestChangeMs: nowMs, pendingMs }: Omit<ConversationSelection, "channels">,
  query: SelectionQuery,
  start: Position | undefined,
): Selection | undefined {
  const { uid, limit, lookBackMs } = query;
  const position = start ?? {
    sinceMs: query.sinceMs,
    asOfMs: nowMs,
    printsFromMs: Math.min(nowMs - lookBackMs, pendingMs ?? nowMs),
    beforeId: Number.MAX_SAFE_INTEGER,
    prints: new Set<string>(),
  };
  const { unchanged, changed } = remaining(heads, position);
  if (!isComplete && unchanged.length <= limit) return undefined;
  const all = [...unchanged, ...changed];
  return {
    heads: all.slice(0, limit),
    cursorAfter(count, returned: readonly State[] = all.slice(0, count)) {
      const last = all[count - 1];
      if (count >= all.length) return undefined;
      if (last === undefined) return query.cursor;
      // Once a page contains changed conversations, the remaining conversations are paged as a new
      // list.
      const next =
        count <= unchanged.length
          ? { ...position, beforeId: last.last.messageId }
          : {
              ...position,
              sinceMs: Math.max(position.sinceMs, position.printsFromMs),
              asOfMs: nowMs,
              beforeId: last.last.messageId,
            };
      return writeCursor(withPrints(next, returned), uid);
    },
  };
}

function remaining(heads: readonly ConversationHead[], position: Position) {
  const { sinceMs, asOfMs, printsFromMs, beforeId, prints } = position;
  const unchanged: ConversationHead[] = [];
  const changed: ConversationHead[] = [];
  for (const head of heads) {
    const { changedAtMs } = head;
    if (changedAtMs < sinceMs) continue;
    const hasPrint = changedAtMs >= printsFromMs;
    if (hasPrint && prints.size > 0 && prints.has(printOf(head))) continue;
    if (changedAtMs <= asOfMs && head.last.messageId < beforeId) unchanged.push(head);
    else if (hasPrint) changed.push(head);
  }
  return { unchanged, changed };
}

function withPrints(position: Position, returned: readonly State[]): Position {
  const prints = new Set(position.prints);
  for (const state of returned)
    if (state.changedAtMs >= position.printsFromMs) prints.add(printOf(state));
  if (prints.size <= MAX_PRINTS) return { ...position, prints };
  return { ...position, prints: new Set(), printsFromMs: position.asOfMs + 1 };
}

function printOf({ channel, last, changedAtMs, readSeq, deletedSeq }: State): string {
  const facts = [channel.type, channel.id, last?.messageId, changedAtMs, readSeq, deletedSeq];
  return hashOf(JSON.stringify(facts), PRINT_BYTES).toString("latin1");
}

function hashOf(text: string | Buffer, bytes: number): Buffer {
  return createHash("sha256").update(text).digest().subarray(0, bytes);
}

function checkOf(uid: string, content: Buffer): Buffer {
  return hashOf(Buffer.concat([Buffer.from(uid), content]), CHECK_BYTES);
}

function writeCursor(position: Position, uid: string): string {
  const { sinceMs, asOfMs, printsFromMs, beforeId, prints } = position;
  const numbers = Buffer.alloc(NUMBERS * 8);
  for (const [at, number] of [sinceMs, asOfMs, printsFromMs, beforeId].entries())
    numbers.writeDoubleBE(number, at * 8);
  const content = Buffer.concat([
    numbers,
    ...[...prints].map((print) => Buffer.from(print, "latin1")),
  ]);
  return Buffer.concat([Buffer.of(VERSION), checkOf(uid, content), content]).toString("base64url");
}

/** Reads a cursor. Throws `bad_cursor` if the cursor is malformed or belongs to another user. */
export function positionAt(cursor: string, uid: string): Position {
  const bytes = Buffer.from(cursor, "base64url");
  const content = bytes.subarray(1 + CHECK_BYTES);
  const printBytes = bytes.length - HEAD_BYTES;
  const isValid =
    cursor.length <= MAX_CURSOR_LENGTH &&
    bytes[0] === VERSION &&
    printBytes >= 0 &&
    printBytes % PRINT_BYTES === 0 &&
    bytes.toString("base64url") === cursor &&
    checkOf(uid, content).equals(bytes.subarray(1, 1 + CHECK_BYTES));
  if (!isValid) throw new BrokerError("bad_cursor");
  const number = (at: number) => content.readDoubleBE(at * 8);
  const prints = new Set<string>();
  for (let at = NUMBERS * 8; at < content.length; at += PRINT_BYTES)
    prints.add(content.toString("latin1", at, at + PRINT_BYTES));
  return {
    sinceMs: number(0),
    asOfMs: number(1),
    printsFromMs: number(2),
    beforeId: number(3),
    prints,
  };
}
