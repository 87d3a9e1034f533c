// The event feed in Redis. Each bucket has a partition: the hash `feed`, which shows whether the
// feed is on, and the streams `events` and `onDemandEvents`. The script that makes a change also
// writes the event. State: the listeners, and a timer while they wait for new events.

import { ON_DEMAND_SHARE } from "../../../broker/event-demand-ports.ts";
import {
  EVENT_PARTITIONS,
  EVENT_TYPES,
  type EventLimits,
  type EventListener,
  type EventPage,
  type EventPosition,
  type EventRow,
  type EventStore,
  MAX_EVENT_COMMANDS,
  MAX_EVENT_UIDS,
} from "../../../broker/event-ports.ts";
import { bucketOf } from "../../../broker/log-frame.ts";
import { messageTimeMs } from "../../../broker/model.ts";
import { idCounterOf } from "../../../redis/id-counters.ts";
import type { RedisLink } from "../../../redis/link.ts";
import { loadScript } from "../../../redis/script.ts";
import { lua, type RedisStorePorts } from "../ports.ts";

const SWITCH = loadScript(lua("feed_switch"));
/** Maximum number of times that `switchFeed` applies the stored value while it keeps changing. */
const MAX_SWITCH_ROUNDS = 10;
const READ = loadScript(lua("events_read"));
const NEWEST = loadScript(lua("feed_newest"));
const TRIM = loadScript(lua("events_trim"));

const FORMAT = "1";
const POLL_MS = 100;
/**
 * Maximum number of entries in a page. An entry may contain several events, one for each message
 * that a call stored in a channel.
 */
const MAX_PAGE_ENTRIES = 200;
/** Number of entries that are read to estimate the size of all entries. */
const SAMPLE = 20;
const ENTRY_OVERHEAD_BYTES = 48;
const PARTITIONS = Array.from({ length: EVENT_PARTITIONS }, (_, at) => at);

/**
 * Lua code that defines constants: the index of each type in `EVENT_TYPES`, and the limits of one
 * event.
 */
export const EVENT_CONSTANTS = [
  ...EVENT_TYPES.map((type, at) => `local ${type.replace(".", "_").toUpperCase()} = ${at}\n`),
  `local MAX_EVENT_UIDS = ${MAX_EVENT_UIDS}\n`,
  `local MAX_EVENT_COMMANDS = ${MAX_EVENT_COMMANDS}\n`,
].join("");
/** Placed in front of scripts that write events. */
export const EVENT_LUA = [EVENT_CONSTANTS, lua("append_event"), lua("events")] as const;

/** Returns the last keys and arguments of a script that writes events (see `lua/events.lua`). */
export function eventParts(
  link: Pick<RedisLink, "keys" | "isCluster">,
  key: string,
): {
  readonly keys: readonly string[];
  readonly args: readonly (string | number)[];
} {
  const bucket = bucketOf(key);
  const ids = idCounterOf(link, bucket);
  const { keys } = link;
  return {
    keys: [keys.bucket("feed", bucket), keys.bucket("events", bucket), ids.key],
    args: [ids.bucket, key],
  };
}

type Entry = readonly [id: Buffer, fields: readonly Buffer[]];

export function createRedisEvents(ports: RedisStorePorts): EventStore {
  const { link, waitForReplicas, onError } = ports;
  const feedKey = (partition: number) => link.keys.bucket("feed", partition);
  const eventsKey = (partition: number) => link.keys.bucket("events", partition);
  const listeners = new Set<EventListener>();
  let polling: NodeJS.Timeout | undefined;

  const onDemandKey = (partition: number) => link.keys.bucket("onDemandEvents", partition);

  /**
   * Returns the events of at most `count` entries of each stream, starting with the first entry
   * that has an event numbered `from` or higher. The result may contain earlier events of this
   * entry. On-demand events that were removed are missing from the result.
   */
  async function entries(
    partition: number,
    from: number,
    count: number,
  ): Promise<readonly EventRow[]> {
    const keys = [eventsKey(partition), onDemandKey(partition)];
    const lists = (await link.run(READ, keys, [from, count])) as readonly (readonly Entry[])[];
    const rows = lists.map((list) => list.flatMap(rowsOf));
    // A list that was cut off at `count` may lack events with lower numbers than the last events of
    // the other list. The result must end before such a gap.
    const ends = rows.map((list, at) =>
      lists[at]?.length === count ? (list.at(-1)?.number ?? 0) : Number.POSITIVE_INFINITY,
    );
    const end = Math.min(...ends);
    const [events = [], onDemand = []] = rows;
    if (onDemand.length === 0) return events;
    return [...events, ...onDemand]
      .filter(({ number }) => number <= end)
      .sort((a, b) => a.number - b.number);
  }

  /**
   * Returns the position of the newest event, and the number up to which all events were removed.
   */
  async function boundsOf(partition: number) {
    const fields = ["number", "stopped", "id", "trimmed"];
    const reply = await link.call("hmget", feedKey(partition), ...fields);
    const [number, stopped, id, trimmed] = (reply as readonly (Buffer | null)[]).map(Number);
    const newest: EventPosition = { number: number || stopped || 0, id: id || 0 };
    return { newest, trimmed: trimmed || 0 };
  }

  async function newestOf(partition: number): Promise<EventPosition> {
    return (await boundsOf(partition)).newest;
  }

  async function oldestOf(partition: number): Promise<EventPosition> {
    const { newest, trimmed } = await boundsOf(partition);
    // The id of a removed event is unknown. The id 0 means that ids are not compared.
    return newest.number === trimmed ? newest : { number: trimmed, id: 0 };
  }

  /** Finds, by a binary search, the position before the first event at `timeMs` or later. */
  async function positionAt(partition: number, timeMs: number): Promise<EventPosition> {
    const [{ number: oldest }, newest] = await Promise.all([
      oldestOf(partition),
      newestOf(partition),
    ]);
    let [low, high] = [oldest + 1, newest.number + 1];
    while (low < high) {
      const middle = Math.floor((low + high) / 2);
      const [row] = (await entries(partition, middle, 1)).filter((row) => row.number >= middle);
      if ((row?.timestampMs ?? timeMs) < timeMs) low = middle + 1;
      else high = middle;
    }
    if (low > newest.number) return newest;
    const rows = await entries(partition, low - 1, 1);
    const before = rows.find(({ number }) => number === low - 1);
    return { number: low - 1, id: before?.id ?? 0 };
  }

  /** Returns the number of the last event that the reader's history and the feed have in common. */
  async function lastCommon(partition: number, after: EventPosition): Promise<number> {
    const newest = await newestOf(partition);
    if (after.id === 0) return newest.number;
    const end = Math.min(after.number, newest.number);
    const names = [eventsKey(partition), onDemandKey(partition)];
    const numbers = await Promise.all(names.map((key) => lastCommonIn(key, after, end)));
    return Math.max(...numbers) || (await oldestOf(partition)).number;
  }

  /**
   * Does the same as `lastCommon` for the events in one key, up to the number `last`. Returns 0 if
   * the key has no such event.
   */
  async function lastCommonIn(key: string, after: EventPosition, last: number): Promise<number> {
    for (let end = last; ; ) {
      // `end` has no `-<id>` part, so the range includes the entry with this number, whatever its
      // id.
      const reply = await link.call("xrevrange", key, end, "-", "COUNT", MAX_PAGE_ENTRIES);
      const rows = (reply as readonly Entry[]).toReversed().flatMap(rowsOf);
      const common = rows.findLast((row) => row.id <= after.id);
      if (common !== undefined) return common.number;
      const [first] = rows;
      if (first === undefined) return 0;
      end = first.number - 1;
    }
  }

  async function forked(partition: number, after: EventPosition, limit: number) {
    const common = await lastCommon(partition, after);
    const rows = await entries(partition, common + 1, Math.min(limit, MAX_PAGE_ENTRIES));
    return pageOf(rows, common, { limit, lost: after.number - common, loss: "forked" });
  }

  async function read(partition: number, after: EventPosition, limit: number): Promise<EventPage> {
    // The read starts with the event at the position itself, so that its id can be compared.
    const count = Math.min(limit, MAX_PAGE_ENTRIES) + 1;
    const rows = await entries(partition, after.number, count);
    const last = rows.find(({ number }) => number === after.number);
    if (last !== undefined) {
      if (after.id !== 0 && last.id !== after.id) return forked(partition, after, limit);
      return pageOf(rows, after.number, { limit, ...NOTHING_LOST });
    }
    const { newest, trimmed } = await boundsOf(partition);
    if (newest.number < after.number) return forked(partition, after, limit);
    const isSame = newest.number === after.number;
    if (isSame && after.id !== 0 && newest.id !== after.id) return forked(partition, after, limit);
    const lost = trimmed - after.number;
    if (lost <= 0) return pageOf(rows, after.number, { limit, ...NOTHING_LOST });
    // The read is repeated, because events may have been written and removed after the first read.
    const left = await entries(partition, trimmed + 1, count);
    return pageOf(left, trimmed, { limit, lost, loss: "expired" });
  }

  /** Returns the newest event's position in each partition. Takes one call on a single server. */
  async function newestEvents(): Promise<readonly EventPosition[]> {
    if (link.isCluster) return Promise.all(PARTITIONS.map(newestOf));
    const reply = await link.run(NEWEST, PARTITIONS.map(feedKey), []);
    const values = reply as readonly number[]; // see the header of `feed_newest.lua`
    return PARTITIONS.map((at) => ({ number: values[2 * at] ?? 0, id: values[2 * at + 1] ?? 0 }));
  }

  /**
   * Returns the newest number of each partition. On a Cluster, a partition whose server is
   * unreachable keeps its previous number, so that readers of the other partitions are still
   * notified.
   */
  async function newestNumbers(previous: readonly number[]): Promise<readonly number[]> {
    if (!link.isCluster) return (await newestEvents()).map(({ number }) => number);
    const results = await Promise.allSettled(PARTITIONS.map(newestOf));
    const failed = results.find(({ status }) => status === "rejected");
    if (failed?.status === "rejected")
      onError(failed.reason, "Could not check the feed for new events");
    return results.map((result, at) =>
      result.status === "fulfilled" ? result.value.number : (previous[at] ?? 0),
    );
  }

  async function poll(previous: readonly number[]): Promise<readonly number[]> {
    const numbers = await newestNumbers(previous);
    const changed = PARTITIONS.filter((at) => numbers[at] !== previous[at]);
    if (changed.length === 0) return numbers;
    const changedNumbers = changed.map((at) => numbers[at] ?? 0);
    for (const listener of listeners) listener(changed, changedNumbers);
    return numbers;
  }

  function startPolling(previous: readonly number[] = []): void {
    polling = setTimeout(async () => {
      const numbers = await poll(previous).catch((error: unknown) => {
        onError(error, "Could not check the feed for new events");
        return previous;
      });
      polling = undefined;
      if (listeners.size > 0) startPolling(numbers);
    }, POLL_MS).unref();
  }

  /**
   * Removes old events from `key`, which is one of the two streams of the partition. If `key` is
   * `events`, also removes the on-demand events with lower numbers than the last removed event.
   */
  async function trim(
    partition: number,
    limits: Omit<EventLimits, "maxBytes">,
    { key, kept }: { readonly key: string; readonly kept: number },
  ): Promise<number> {
    const neededAfter = limits.held === undefined ? -1 : (limits.held[partition]?.number ?? 0);
    let total = 0;
    for (;;) {
      const args = [limits.beforeMs, neededAfter, kept];
      const keys = [key, onDemandKey(partition), feedKey(partition)];
      const reply = await link.run(TRIM, keys, args);
      const [removed, mustRepeat] = reply as [number, number];
      total += removed;
      if (mustRepeat === 0 || limits.signal?.aborted) return total;
    }
  }

  /** Returns the number of entries in a stream, and the estimated bytes of one entry. */
  async function sizeOf(key: string): Promise<{ readonly count: number; bytes: number }> {
    const [count, reply] = await Promise.all([
      link.call("xlen", key),
      link.call("xrange", key, "-", "+", "COUNT", SAMPLE),
    ]);
    const sample = reply as readonly Entry[];
    let bytes = 0;
    for (const [id, fields] of sample)
      bytes += fields.reduce((sum, { length }) => sum + length, id.length + ENTRY_OVERHEAD_BYTES);
    return { count: Number(count), bytes: bytes / Math.max(1, sample.length) };
  }

  async function sizesOf(keyOf: (partition: number) => string) {
    const sizes = await Promise.all(PARTITIONS.map((partition) => sizeOf(keyOf(partition))));
    return { sizes, total: sizes.reduce((sum, { count, bytes }) => sum + count * bytes, 0) };
  }

  /** In each partition, removes the oldest events from the stream whose key `keyOf` returns. */
  async function trimAll(
    keyOf: (partition: number) => string,
    { maxBytes, ...limits }: EventLimits,
  ): Promise<number> {
    const { sizes, total } = await sizesOf(keyOf);
    const share = maxBytes / total;
    const removed = await Promise.all(
      sizes.map(({ count }, at) => {
        const kept = share < 1 ? Math.floor(count * share) : Number.MAX_SAFE_INTEGER;
        return trim(at, limits, { key: keyOf(at), kept });
      }),
    );
    return removed.reduce((sum, count) => sum + count, 0);
  }

  const switchKey = link.keys.shared("feed");

  async function feedSwitch(): Promise<boolean | undefined> {
    const stored = await link.call("get", switchKey);
    return stored === null ? undefined : String(stored) === encodeSwitch(true);
  }

  async function switchPartitions(isOn: boolean): Promise<void> {
    await Promise.all(
      PARTITIONS.map(async (partition) => {
        await link.run(SWITCH, [feedKey(partition)], [isOn ? 1 : 0]);
        await waitForReplicas(feedKey(partition));
      }),
    );
  }

  return {
    feedSwitch,

    async switchFeed(isOn) {
      if (isOn) await switchPartitions(true);
      await link.write("set", switchKey, encodeSwitch(isOn));
      await waitForReplicas(switchKey);
      // Another call may turn the partitions on or off at the same time. Each call applies the
      // stored value until the value is unchanged, so the call that ends last leaves the partitions
      // in the stored state.
      let applied = isOn;
      for (let round = 0; round < MAX_SWITCH_ROUNDS; round++) {
        await switchPartitions(applied);
        const stored = (await feedSwitch()) === true;
        if (stored === applied) break;
        applied = stored;
      }
      if (ports.demand !== undefined) ports.demand.feed = applied;
    },

    newestEvents,
    oldestEvents: () => Promise.all(PARTITIONS.map(oldestOf)),
    eventsSince: (timeMs) => Promise.all(PARTITIONS.map((at) => positionAt(at, timeMs))),
    readEvents: read,

    onEvents(listener) {
      listeners.add(listener);
      if (polling === undefined) startPolling();
      return () => listeners.delete(listener);
    },

    async trimEvents(limits) {
      const { maxBytes } = limits;
      const onDemand = await trimAll(onDemandKey, {
        ...limits,
        maxBytes: Math.floor(maxBytes * ON_DEMAND_SHARE),
      });
      const { total } = await sizesOf(onDemandKey);
      const others = { ...limits, maxBytes: Math.max(0, maxBytes - total) };
      return onDemand + (await trimAll(eventsKey, others));
    },

    async eventBytes() {
      const all = await Promise.all([sizesOf(eventsKey), sizesOf(onDemandKey)]);
      return all.reduce((sum, { total }) => sum + total, 0);
    },
  };
}

const NOTHING_LOST = { lost: 0, loss: undefined } as const;

function pageOf(
  rows: readonly EventRow[],
  after: number,
  { limit, lost, loss }: Pick<EventPage, "lost" | "loss"> & { readonly limit: number },
): EventPage {
  return { rows: rows.filter(({ number }) => number > after).slice(0, limit), lost, loss };
}

/** Returns the events of an entry (see `events` in `ports.ts`). */
function rowsOf([entryId, items]: Entry): readonly EventRow[] {
  const [last = 0, lastId = 0] = String(entryId).split("-").map(Number);
  const values = new Map<string, string>();
  for (let at = 0; at < items.length; at += 2) values.set(String(items[at]), String(items[at + 1]));
  const ids = values.get("i")?.split(" ").map(Number) ?? [lastId];
  const seq = Number(values.get("s") ?? 0);
  const json = values.get("d");
  const fields = json === undefined ? undefined : JSON.parse(json);
  return ids.map((id, at) => ({
    number: last - ids.length + 1 + at,
    id,
    type: EVENT_TYPES[Number(values.get("t"))] ?? "message.stored",
    timestampMs: messageTimeMs(id),
    key: values.get("k") ?? "",
    messageSeq: seq + at,
    fields,
  }));
}

/** Returns the ID and the fields of an entry that contains only the event `row`. */
export function encodeEvent(row: EventRow): readonly [id: string, fields: readonly string[]] {
  const { number, id, type, key, messageSeq, fields } = row;
  const items = ["t", `${EVENT_TYPES.indexOf(type)}`, "k", key, "s", `${messageSeq}`];
  if (fields !== undefined) items.push("d", JSON.stringify(fields));
  return [`${number}-${id}`, items];
}

export function encodeSwitch(isOn: boolean): string {
  return `${FORMAT} ${isOn ? "on" : "off"}`;
}

export function feedFields(
  isOn: boolean,
  { number, id }: EventPosition,
  trimmed: number,
): readonly string[] {
  const fields = [isOn ? "number" : "stopped", `${number}`, "id", `${id}`];
  return trimmed === 0 ? fields : [...fields, "trimmed", `${trimmed}`];
}
