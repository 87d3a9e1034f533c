// Reads the event feed for backends: merges the partitions, adds message content, and waits for new
// events. State: the waiting readers.

import { deferred } from "../lib/deferred.ts";
import { waitAtMost } from "../lib/wait-at-most.ts";
import { decodeCursor, encodeCursor } from "./event-cursor.ts";
import { isOnDemand } from "./event-demand.ts";
import { ON_DEMAND_TYPES } from "./event-demand-ports.ts";
import { messagesOf } from "./event-messages.ts";
import {
  EVENT_NAMES,
  EVENT_PARTITIONS,
  type EventFields,
  type EventListener,
  type EventPage,
  type EventPosition,
  type EventRow,
  type EventStore,
} from "./event-ports.ts";
import { bucketOf } from "./log-frame.ts";
import {
  type ChannelKey,
  isUserTopic,
  type Message,
  messageTimeMs,
  streamPayload,
  userTopic,
} from "./model.ts";
import type { MessageStore } from "./ports.ts";
import { connectionNumber } from "./session-names.ts";

/** Fields of an event, in the form in which readers of the feed receive them. */
type EventData = Readonly<Record<string, unknown>>;

/** An event as backends see it. */
export interface FeedEvent {
  /** Identifies the event. No two events have the same id. */
  readonly id: string;
  readonly type: string;
  readonly timestampMs: number;
  readonly data: EventData;
}

/** An event, and the position after it. */
interface PlacedEvent {
  readonly event: FeedEvent;
  readonly position: EventPosition;
}

interface PartitionPage {
  readonly events: readonly PlacedEvent[];
  /** Position after the last event that was examined. */
  readonly end: EventPosition;
  /**
   * Reason why events before the page are missing, or `undefined` if no event is missing. If events
   * are missing, the first event of the page is `feed.gap`.
   */
  readonly loss: EventPage["loss"];
  /** True if further events of the partition may follow the page. */
  readonly more: boolean;
}

export interface EventFilter {
  /**
   * Names of types. A name that ends with `*` selects all types that begin with the text before the
   * `*`, except on-demand types. An on-demand type is selected only by its exact name, or by
   * `session.*` or `command.*`. An empty list selects all types except on-demand types.
   */
  readonly types: readonly string[];
  /** Channel whose events are read. `undefined` means all events. */
  readonly key: ChannelKey | undefined;
}

/** An event, and the position in each partition after it. */
interface PagedEvent {
  readonly event: FeedEvent;
  readonly positions: readonly EventPosition[];
}

export interface FeedPage {
  readonly events: readonly PagedEvent[];
  /** Position in each partition after the page. */
  readonly positions: readonly EventPosition[];
  readonly more: boolean;
}

/** Range of consecutive event numbers whose on-demand events were removed from the feed. */
interface Hole {
  readonly from: number;
  readonly to: number;
  /** Time of the first event after the range. */
  readonly timestampMs: number;
}

interface EventsPorts {
  readonly store: EventStore & Pick<MessageStore, "readMessages">;
  /** Returns the fields of a message as the history shows them. */
  readonly toJson: (message: Message) => EventData;
  readonly onRead?: (types: readonly string[]) => Promise<void>;
}

const GAP = "feed.gap";
/** Key that stands for any user when a filter is checked for user events. */
const ANY_USER = userTopic("");
const PARTITIONS_AT_ONCE = 8;
/** Number of rows after which a page ends, even if the filter has selected only a few of them. */
const MAX_EXAMINED = 5000;
const ROWS_PER_READ = 100;
/**
 * Maximum size of the content on one page of a partition. The first event is returned even if it is
 * larger.
 */
const MAX_PAGE_BYTES = 4 * 1024 * 1024;
const ID_DIGITS = 12;
/** Maximum number of bytes of a stream's text that an event contains. */
const MAX_STREAM_TEXT = 64 * 1024;
/** Time after which a waiting reader reads again, because its listener may be called late. */
const MAX_WAIT_MS = 1000;

export class Events {
  readonly #ports: EventsPorts;
  /** Functions that end the readers' waits. */
  readonly #waits = new Set<() => void>();
  #isClosed = false;

  constructor(ports: EventsPorts) {
    this.#ports = ports;
  }

  /** True if no reader may wait for events any more, because the node is stopping. */
  get isClosed(): boolean {
    return this.#isClosed;
  }

  /** Ends all waits. Each waiting reader reads once more, and may get an empty page. */
  close(): void {
    this.#isClosed = true;
    for (const endWait of this.#waits) endWait();
  }

  async isOn(): Promise<boolean> {
    return (await this.#ports.store.feedSwitch()) === true;
  }

  /**
   * Turns the feed on or off, and returns the cursor after the newest event. If the feed was turned
   * on, every later change has an event after this cursor.
   */
  async switch(isOn: boolean): Promise<string> {
    await this.#ports.store.switchFeed(isOn);
    return encodeCursor(await this.#ports.store.newestEvents());
  }

  async oldestCursor(): Promise<string> {
    return encodeCursor(await this.#ports.store.oldestEvents());
  }

  /**
   * Returns the position at which a reader starts in each partition. `place` is `now`, `oldest`, a
   * cursor, or a time (RFC 3339 or Unix milliseconds). The result is `undefined` for any other
   * text.
   */
  async positionsAt(place: string): Promise<readonly EventPosition[] | undefined> {
    const { store } = this.#ports;
    if (place === "now") return store.newestEvents();
    if (place === "oldest") return store.oldestEvents();
    const timeMs = timeOf(place);
    return timeMs === undefined ? decodeCursor(place) : store.eventsSince(timeMs);
  }

  onEvents(listener: EventListener): () => void {
    return this.#ports.store.onEvents(listener);
  }

  /**
   * Reads a page of a partition's events that `selects` accepts. The page has at most `limit`
   * events, and no event with a number above `through`. If events are missing, the page begins with
   * an additional `feed.gap` event.
   */
  async readPartition(
    partition: number,
    after: EventPosition,
    terms: {
      readonly selects: (row: Pick<EventRow, "type" | "key">) => boolean;
      readonly limit: number;
      readonly through?: number | undefined;
    },
  ): Promise<PartitionPage> {
    const { selects, limit, through = Number.POSITIVE_INFINITY } = terms;
    const page = await this.#ports.store.readEvents(partition, after, ROWS_PER_READ);
    const gap =
      page.loss && gapOf(partition, after, page, await this.#timeAfterLoss(partition, page));
    const start = startOf(after, page);
    const rows = page.rows.filter(({ number }) => number <= through);
    const selected = withHoles(rows, start, selects);
    const events = await this.#withContent(partition, selected.slice(0, limit));
    const isCut = events.length < selected.length;
    const last = isCut ? events.at(-1)?.position : rows.at(-1);
    return {
      events: gap === undefined ? events : [{ event: gap, position: start }, ...events],
      end: last === undefined ? start : { number: last.number, id: last.id },
      loss: page.loss,
      more: isCut || page.rows.length === ROWS_PER_READ,
    };
  }

  /**
   * Reads events after the positions, ordered within each partition. Returns `undefined` if events
   * that follow a position have expired (see `EventPage`).
   */
  async read(
    start: readonly EventPosition[],
    filter: EventFilter,
    limit: number,
  ): Promise<FeedPage | undefined> {
    await this.#ports.onRead?.(filter.types);
    const positions = [...start];
    const newest = await this.#ports.store.newestEvents();
    const selects = selectorOf(filter);
    const only = filter.key === undefined ? undefined : bucketOf(filter.key);
    const pending = Array.from({ length: EVENT_PARTITIONS }, (_, at) => at).filter(
      (at) => (only === undefined || only === at) && !isSame(positions[at], newest[at]),
    );
    const share = Math.max(1, Math.ceil(limit / Math.max(1, pending.length)));
    const events: PagedEvent[] = [];
    let examined = 0;
    while (pending.length > 0 && events.length < limit && examined < MAX_EXAMINED) {
      const turn = pending.splice(0, PARTITIONS_AT_ONCE);
      const pages = await Promise.all(
        turn.map(async (partition) => {
          const terms = { selects, limit: Math.min(share, limit - events.length) };
          const after = positions[partition] ?? { number: 0, id: 0 };
          return { partition, page: await this.readPartition(partition, after, terms) };
        }),
      );
      for (const { partition, page } of pages) {
        if (page.loss === "expired") return undefined;
        let isWhole = true;
        for (const { event, position } of page.events) {
          if (events.length === limit) {
            isWhole = false;
            break;
          }
          positions[partition] = position;
          events.push({ event, positions: [...positions] });
        }
        const before = positions[partition]?.number ?? 0;
        if (isWhole) positions[partition] = page.end;
        examined += Math.max(ROWS_PER_READ / 10, page.end.number - before);
        if (!isWhole || page.more) pending.push(partition);
      }
    }
    return { events, positions, more: pending.length > 0 };
  }

  /**
   * Does the same as `read`, but waits up to `waitMs` for an event. `close` ends the wait
   * immediately. An abort of `signal` ends the wait within `MAX_WAIT_MS`.
   */
  async readWithin(
    start: readonly EventPosition[],
    filter: EventFilter,
    {
      limit,
      waitMs,
      signal,
    }: {
      readonly limit: number;
      readonly waitMs: number;
      readonly signal?: AbortSignal;
    },
  ): Promise<FeedPage | undefined> {
    const untilMs = performance.now() + waitMs;
    let from = start;
    for (;;) {
      const news = deferred();
      const endListening = this.onEvents(() => news.resolve());
      this.#waits.add(news.resolve);
      try {
        const page = await this.read(from, filter, limit);
        const leftMs = untilMs - performance.now();
        if (page === undefined) return undefined;
        const isOver = leftMs <= 0 || signal?.aborted || this.#isClosed;
        if (page.events.length > 0 || isOver) return page;
        from = page.positions;
        if (!page.more) await waitAtMost(news.promise, Math.min(leftMs, MAX_WAIT_MS));
      } finally {
        endListening();
        this.#waits.delete(news.resolve);
      }
    }
  }

  /**
   * Returns the time of the first event after a loss, or of the newest event if no event follows
   * the loss.
   */
  async #timeAfterLoss(partition: number, { rows: [next] }: EventPage): Promise<number> {
    if (next !== undefined) return next.timestampMs;
    const newest = await this.#ports.store.newestEvents();
    return messageTimeMs(newest[partition]?.id ?? 0);
  }

  /**
   * Adds message content to events. Returns fewer events if their content exceeds `MAX_PAGE_BYTES`.
   */
  async #withContent(partition: number, items: readonly (EventRow | Hole)[]) {
    const messages = await messagesOf(this.#ports.store, items.filter(isRow));
    const events: PlacedEvent[] = [];
    let bytes = 0;
    for (const row of items) {
      if (!isRow(row)) {
        events.push({ event: holeEvent(partition, row), position: { number: row.to, id: 0 } });
        continue;
      }
      const message = messages.get(`${row.key}\n${row.messageSeq}`);
      bytes += (message?.payload.length ?? 0) + textBytes(row.fields);
      if (events.length > 0 && bytes > MAX_PAGE_BYTES) break;
      events.push({ event: eventOf(partition, row, this.#dataOf(row, message)), position: row });
    }
    return events;
  }

  #dataOf(row: EventRow, message: Message | undefined): EventData {
    const { id, type, key, messageSeq, fields } = row;
    if (isUserTopic(key)) return { uid: key.slice(2), ...userFields(fields) };
    if (type === "message.unreached")
      return { ...this.#unreachedOf(row, message), channel_key: key };
    if (type === "stream.ended") return { ...this.#endOf(row, message), channel_key: key };
    if (type !== "message.stored")
      return {
        ...{ channel_id: key.slice(2), channel_type: Number(key[0]) },
        ...fields,
        channel_key: key,
      };
    return { ...this.#contentOf({ id, messageSeq }, message), channel_key: key };
  }

  /** Returns the fields of a message, or only its ids if it was removed. */
  #contentOf(
    { id, messageSeq }: { readonly id: number; readonly messageSeq: number },
    message: Message | undefined,
  ): EventData {
    return message === undefined || message.messageId !== id
      ? { message_id: id, message_idstr: String(id), message_seq: messageSeq, gone: 1 }
      : this.#asStored(message);
  }

  /**
   * Returns the fields of a message as they were when it was stored. A stream's message had no text
   * at that time.
   */
  #asStored(message: Message): EventData {
    const { stream, payload } = message;
    if (stream === undefined) return this.#ports.toJson(message);
    const isText = Buffer.compare(payload, streamPayload(stream.text)) === 0;
    const stored = { ...message, stream: undefined, payload: isText ? streamPayload("") : payload };
    return { ...this.#ports.toJson(stored), stream: { state: "active" } };
  }

  #unreachedOf(row: EventRow, message: Message | undefined): EventData {
    const { uids, page, pages } = row.fields ?? {};
    const { id } = messageEventOf(row);
    const content = this.#contentOf({ id, messageSeq: row.messageSeq }, message);
    return { ...content, uids, page, pages };
  }

  /**
   * Returns the fields of a `stream.ended` event. They contain no text if the message was removed.
   */
  #endOf({ messageSeq, fields = {} }: EventRow, message: Message | undefined): EventData {
    const ids = { client_msg_no: fields.client_msg_no, message_seq: messageSeq };
    const { stream, clientMsgNo } = message ?? {};
    if (message === undefined || stream === undefined || clientMsgNo !== fields.client_msg_no)
      return { ...ids, state: fields.state, gone: 1 };
    const { channel_id, channel_type } = this.#ports.toJson(message);
    const text = firstBytes(stream.text, MAX_STREAM_TEXT);
    const isCut = text.length < stream.text.length;
    return {
      ...{ channel_id, channel_type, ...ids, state: fields.state },
      ...{ text, truncated: isCut ? 1 : 0 },
    };
  }
}

function timeOf(text: string): number | undefined {
  if (/^\d{1,15}$/.test(text)) return Number(text);
  const timeMs = /^\d{4}-\d\d-\d\dT/.test(text) ? Date.parse(text) : Number.NaN;
  return Number.isNaN(timeMs) ? undefined : timeMs;
}

function selectorOf({ types, key }: EventFilter) {
  const matches = typeSelector(types);
  return (row: Pick<EventRow, "type" | "key">) =>
    matches(row.type) && (key === undefined || row.key === key);
}

/** Returns a function that decides whether a type matches one of the names (see `EventFilter`). */
export function typeSelector(names: readonly string[]): (type: string) => boolean {
  const exact = new Set(names.filter((name) => !name.endsWith("*")));
  const beginnings = names.filter((name) => name.endsWith("*")).map((name) => name.slice(0, -1));
  return (type) => {
    if (exact.has(type)) return true;
    if (isOnDemand(type)) return names.includes(`${type.slice(0, type.indexOf("."))}.*`);
    return names.length === 0 || beginnings.some((beginning) => type.startsWith(beginning));
  };
}

/** Returns an error message if one of the names (see `EventFilter`) selects no type. */
export function typesError(names: readonly string[]): string | undefined {
  const unknown = names.find((name) => !EVENT_NAMES.some(typeSelector([name])));
  if (unknown === undefined) return undefined;
  return `${unknown} does not match any type of event. The types are ${EVENT_NAMES.join(", ")}.`;
}

function eventOf(partition: number, row: EventRow, data: EventData): FeedEvent {
  const { type, timestampMs, fields } = row;
  const id = eventId(partition, messageEventOf(row));
  const isPage = type === "message.unreached";
  return { id: isPage ? `${id}-u${fields?.page}` : id, type, timestampMs, data };
}

/**
 * Returns the position of the event. For `message.unreached`, returns the position of its message's
 * `message.stored` event.
 */
function messageEventOf({ type, number, id, fields }: EventRow): EventPosition {
  if (type !== "message.unreached") return { number, id };
  const place = fields?.event as readonly [number, number] | undefined; // written by `unreached.ts`
  const [messageNumber = number, messageId = id] = place ?? [];
  return { number: messageNumber, id: messageId };
}

function eventId(partition: number, { number, id }: EventPosition): string {
  return `${partition}-${String(number).padStart(ID_DIGITS, "0")}-${id}`;
}

/** Returns the position that the rows of a page follow. */
function startOf(after: EventPosition, { lost, loss }: EventPage): EventPosition {
  if (loss === undefined) return after;
  const number = loss === "expired" ? after.number + lost : after.number - lost;
  return { number, id: 0 };
}

function gapOf(
  partition: number,
  after: EventPosition,
  { lost, loss }: EventPage,
  timestampMs: number,
): FeedEvent {
  const from = loss === "expired" ? after.number + 1 : after.number - lost + 1;
  return {
    id: `${eventId(partition, after)}-gap`,
    ...{ type: GAP, timestampMs },
    data: { from, to: from + lost - 1, count: lost },
  };
}

/**
 * Returns the selected rows. If on-demand events are selected, also returns a hole for each gap in
 * the numbers. A gap always consists of on-demand events, because other events are removed only at
 * the beginning of the feed.
 */
function withHoles(
  rows: readonly EventRow[],
  start: EventPosition,
  selects: (row: Pick<EventRow, "type" | "key">) => boolean,
): readonly (EventRow | Hole)[] {
  const showsHoles = ON_DEMAND_TYPES.some((type) => selects({ type, key: ANY_USER }));
  const items: (EventRow | Hole)[] = [];
  let next = start.number + 1;
  for (const row of rows) {
    const { number, timestampMs } = row;
    if (showsHoles && number > next) items.push({ from: next, to: number - 1, timestampMs });
    if (selects(row)) items.push(row);
    next = number + 1;
  }
  return items;
}

function isRow(item: EventRow | Hole): item is EventRow {
  return "type" in item;
}

function holeEvent(partition: number, { from, to, timestampMs }: Hole): FeedEvent {
  return {
    id: `${eventId(partition, { number: to, id: 0 })}-gap`,
    ...{ type: GAP, timestampMs },
    data: { from, to, count: to - from + 1, types: ON_DEMAND_TYPES },
  };
}

/** Returns the longest prefix of whole characters that takes at most `bytes` bytes in UTF-8. */
function firstBytes(text: string, bytes: number): string {
  if (Buffer.byteLength(text) <= bytes) return text;
  const encoded = Buffer.from(text.slice(0, bytes));
  let end = Math.min(bytes, encoded.length);
  while (end > 0 && ((encoded[end] ?? 0) & 0xc0) === 0x80) end--;
  return encoded.toString("utf8", 0, end);
}

/** Returns the approximate size of a row's fields. Only lists of strings can be large. */
function textBytes(fields: EventFields = {}): number {
  let bytes = 0;
  for (const value of Object.values(fields))
    if (Array.isArray(value)) bytes = value.reduce((sum, text) => sum + String(text).length, bytes);
  return bytes;
}

/**
 * Returns the fields of an event about a user. The session id is replaced with the session's
 * connection number.
 */
function userFields({ session_id: sessionId, ...fields }: EventFields = {}): EventFields {
  if (typeof sessionId !== "string") return fields;
  const { device_flag, device_id, ...others } = fields;
  return { device_flag, device_id, conn_id: connectionNumber(sessionId), ...others };
}

function isSame(a: EventPosition | undefined, b: EventPosition | undefined): boolean {
  return a?.number === b?.number && a?.id === b?.id;
}
