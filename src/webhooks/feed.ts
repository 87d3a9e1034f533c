// Reads the event feed for deliveries: selects events by type and channel, and joins pages until
// a request is full. Keeps no state.

import type { EventPosition, EventRow } from "../broker/event-ports.ts";
import { type Events, typeSelector } from "../broker/events.ts";
import { isUserTopic } from "../broker/model.ts";
import type { ChannelFilter } from "../broker/webhook-ports.ts";
import type { WebhookEvent } from "./formats.ts";
import type { FeedPage, PlacedEvent } from "./lane.ts";

/** Maximum number of pages in one call that selects few events, so that it does not take long. */
const MAX_PAGES = 10;

/** Which events of a partition to read. */
export interface Selection {
  readonly types: readonly string[];
  readonly channels: ChannelFilter;
  readonly limit: number;
  /** Number of the last row to read. All rows up to it are read. `undefined` for no limit. */
  readonly through: number | undefined;
}

export async function readFeed(
  feed: Pick<Events, "readPartition">,
  partition: number,
  after: EventPosition,
  { types, channels, limit, through }: Selection,
): Promise<FeedPage> {
  const matches = typeSelector(types);
  const selects = (row: Pick<EventRow, "type" | "key">) =>
    matches(row.type) && isInChannels(row.key, channels);
  const maxPages = through === undefined ? MAX_PAGES : Number.POSITIVE_INFINITY;
  const events: PlacedEvent[] = [];
  let end = after;
  let more = true;
  let gap: WebhookEvent | undefined;
  for (let pages = 0; more && pages < maxPages && events.length < limit; pages++) {
    const left = limit - events.length;
    const page = await feed.readPartition(partition, end, { selects, limit: left, through });
    for (const [at, { event, position }] of page.events.entries()) {
      const { id, type, timestampMs, data } = event;
      const timestamp = new Date(timestampMs).toISOString();
      const sent = { id, type, timestamp, data };
      if (page.loss !== undefined && at === 0) gap ??= sent;
      else events.push({ event: sent, position, bytes: Buffer.byteLength(JSON.stringify(sent)) });
    }
    end = page.end;
    more = page.more && (through === undefined || end.number < through);
  }
  return { events, end, more, gap };
}

function isInChannels(key: string, { type, prefix = "" }: ChannelFilter): boolean {
  if (isUserTopic(key)) return true;
  if (type !== undefined && !key.startsWith(`${type}:`)) return false;
  const ids = key.slice(2).split("@");
  return ids.some((id) => id.startsWith(prefix));
}
