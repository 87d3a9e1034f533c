// Reads the event feed for deliveries: selects events by type and channel, and reads pages until a
// request is full. Keeps no state.

import type { EventPosition, EventRow } from "../broker/event-ports.ts";
import { type Events, typeSelector } from "../broker/events.ts";
import { isUserTopic } from "../broker/model.ts";
import type { ChannelFilter } from "../broker/webhook-ports.ts";
import { encodeEvent, type WebhookEvent } from "./formats.ts";
import { type FeedPage, MAX_BODY_BYTES, type PlacedEvent } from "./lane.ts";

/**
 * Maximum number of pages per call with a finite `limit`, so that a call that selects few events
 * does not take too long.
 */
const MAX_PAGES = 10;

/** Criteria for the events to read from a partition. */
export interface Selection {
  readonly types: readonly string[];
  readonly channels: ChannelFilter;
  /** Maximum number of events. `Infinity` for all events up to `through`. */
  readonly limit: number;
  /** Number of the last row to read. `undefined` means no limit. */
  readonly through: number | undefined;
}

/** Returns a function that decides whether an event belongs to the selection. */
export function rowSelector({
  types,
  channels,
}: Pick<Selection, "types" | "channels">): (row: Pick<EventRow, "type" | "key">) => boolean {
  const matches = typeSelector(types);
  return ({ type, key }) => matches(type) && isInChannels(key, channels);
}

export async function readFeed(
  feed: Pick<Events, "readPartition">,
  partition: number,
  after: EventPosition,
  { types, channels, limit, through }: Selection,
): Promise<FeedPage> {
  const selects = rowSelector({ types, channels });
  const maxPages = limit === Number.POSITIVE_INFINITY ? limit : MAX_PAGES;
  const maxBytes = limit === Number.POSITIVE_INFINITY ? limit : MAX_BODY_BYTES;
  const events: PlacedEvent[] = [];
  let bytes = 0;
  let start = after;
  let end = after;
  let more = true;
  let gap: WebhookEvent | undefined;
  const isoTime = createIsoTime();
  for (let pages = 0; more && pages < maxPages && events.length < limit; pages++) {
    if (bytes >= maxBytes) break; // the request has no room for another event
    const left = limit - events.length;
    const page = await feed.readPartition(partition, end, { selects, limit: left, through });
    // The gap and the events after it are left to the next call, because a gap must be announced
    // before the events after it are sent.
    if (page.loss !== undefined && pages > 0) break;
    for (const [at, { event, position }] of page.events.entries()) {
      const { id, type, timestampMs, data } = event;
      const timestamp = isoTime(timestampMs);
      const sent = { id, type, timestamp, data };
      if (page.loss !== undefined && at === 0) {
        gap = sent;
        start = position;
      } else {
        const encoded = encodeEvent(sent);
        const size = Buffer.byteLength(encoded.json);
        bytes += size;
        events.push({ ...encoded, position, bytes: size });
      }
    }
    end = page.end;
    more = page.more && (through === undefined || end.number < through);
  }
  return { events, start, end, more, gap };
}

/**
 * Returns a function that formats times (RFC 3339). The function is fast for times within the same
 * second.
 */
function createIsoTime(): (timeMs: number) => string {
  let second = Number.NaN;
  let prefix = "";
  return (timeMs) => {
    const milliseconds = timeMs % 1000;
    if (timeMs - milliseconds !== second) {
      second = timeMs - milliseconds;
      prefix = new Date(second).toISOString().slice(0, -4);
    }
    return `${prefix}${String(milliseconds).padStart(3, "0")}Z`;
  };
}

function isInChannels(key: string, { type, prefix = "" }: ChannelFilter): boolean {
  if (type === undefined && prefix === "") return true;
  if (isUserTopic(key)) return true;
  if (type !== undefined && !key.startsWith(`${type}:`)) return false;
  const ids = key.slice(2).split("@");
  return ids.some((id) => id.startsWith(prefix));
}
