// Finds the streams that ended while a client was disconnected. A client that resumes is sent the
// whole state of these streams, so that no text stays incomplete.

import { type ChannelKey, channelKey, GROUP_CHANNEL, messageTimeMs } from "../broker/model.ts";
import { MAX_STREAM_ENDS, type StreamEnd, type StreamStore } from "../broker/ports.ts";
import { timesIn } from "../broker/session-names.ts";
import type { ResumePoint } from "../protocol/protocol.ts";

/**
 * Period before a connect. A client that cannot resume is sent the streams that ended in this
 * period.
 */
const RECENT_MS = 60_000;
/**
 * Maximum delay of an event to a slow client, relative to newer messages. A client may lack an
 * event even if it has a message that is newer by up to this time.
 */
const MARGIN_MS = 600_000;

interface Away {
  /** Name of the session that the client continues, or "" for a new session. */
  readonly sessionName: string;
  readonly points: readonly ResumePoint[];
  readonly canResume: boolean;
}

/**
 * Returns the time (Unix milliseconds) after which the client may have missed the ends of streams:
 * 0 if the time is unknown, `undefined` if the client is new.
 */
export function endsMissedSince(
  { sessionName, points, canResume }: Away,
  nowMs: number,
): number | undefined {
  if (!canResume) return nowMs - RECENT_MS;
  const times = timesIn(sessionName);
  const newestId = points.reduce((newest, { lastId = 0 }) => Math.max(newest, lastId), 0);
  const shownMs = newestId === 0 ? 0 : Math.max(0, messageTimeMs(newestId) - MARGIN_MS);
  if (times === undefined) return points.length === 0 ? undefined : shownMs;
  const { connectedMs, endsSinceMs } = times;
  if (points.length === 0) return Math.max(endsSinceMs, connectedMs - MARGIN_MS);
  // The previous connection may have been lost before all ends were sent to the client. The client
  // has all of them if its newest message is at least `MARGIN_MS` later than the previous connect.
  return shownMs >= connectedMs ? Math.max(endsSinceMs, shownMs) : endsSinceMs;
}

/**
 * Returns the streams of these groups and of the user's personal channels that ended at `sinceMs`
 * or later. If there are more than MAX_STREAM_ENDS, returns only the newest.
 */
export async function readMissedEnds(
  uid: string,
  groupIds: readonly string[],
  sinceMs: number,
  store: Pick<StreamStore, "streamEnds" | "personalStreamEnds">,
): Promise<readonly StreamEnd[]> {
  const keys = groupIds.map((id) => channelKey({ id, type: GROUP_CHANNEL }, uid));
  const ends = await Promise.all([
    keys.length === 0 ? [] : store.streamEnds(keys, sinceMs, MAX_STREAM_ENDS),
    store.personalStreamEnds(uid, sinceMs, MAX_STREAM_ENDS),
  ]);
  return newestOf(ends.flat());
}

/**
 * Returns the ends that the client may lack. For each channel, these are the ends of all streams
 * whose messages are later than the client's position, and the end of the newest stream whose
 * message is not later. The result also contains each end that is not earlier than the client's
 * newest message in the channel, because several streams of a channel can be active at once.
 */
export function lackedEnds(
  ends: readonly StreamEnd[],
  uid: string,
  points: readonly ResumePoint[],
  sinceMs: number,
): readonly StreamEnd[] {
  const byKey = new Map(points.map((point) => [channelKey(point.channel, uid), point]));
  const newestSeqs = new Map<ChannelKey, number>();
  for (const { key, messageSeq } of ends)
    if (messageSeq <= (byKey.get(key)?.lastSeq ?? 0))
      newestSeqs.set(key, Math.max(messageSeq, newestSeqs.get(key) ?? 0));
  return ends.filter(({ key, messageSeq, endedMs }) => {
    const point = byKey.get(key);
    // For a channel without a position, ends are returned only if `sinceMs` is known (not 0).
    if (point === undefined) return sinceMs > 0;
    const { lastSeq, lastId = 0 } = point;
    const isLater = lastId > 0 && endedMs >= messageTimeMs(lastId);
    return messageSeq > lastSeq || messageSeq === newestSeqs.get(key) || isLater;
  });
}

function newestOf(ends: readonly StreamEnd[]): readonly StreamEnd[] {
  return ends.toSorted((a, b) => b.endedMs - a.endedMs).slice(0, MAX_STREAM_ENDS);
}
