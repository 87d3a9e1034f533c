// Compares the resume points in a CONNECT with the store, and sets the positions at which the
// session starts in its channels.

import { type ChannelRef, channelKey, GROUP_CHANNEL, messageTimeMs } from "../broker/model.ts";
import type { ResumeSeqs, StreamEnd } from "../broker/ports.ts";
import type { ResumePoint, ResumeResult } from "../protocol/protocol.ts";
import { PERSONAL_CHANNELS } from "./backlog.ts";
import type { Groups } from "./groups.ts";
import { lackedEnds } from "./missed-ends.ts";
import type { Session } from "./session.ts";

/**
 * Maximum age of a remembered resume point in a personal channel, relative to the newest personal
 * message that the client has. Older points are not needed, because messages that old are not
 * published again.
 */
const LATELY_MS = 10_000;
const NOTHING_TO_RESUME: Resume = { personal: [], results: [] };

interface ResumeOutcome {
  /**
   * The client's resume point. Its seq is lowered if the client and the store agree only up to a
   * lower seq.
   */
  readonly point: ResumePoint;
  /** The channel's newest seq, or 0 if the client may not read the channel. */
  readonly headSeq: number;
  readonly result: ResumeResult;
}

/** State of the session's user and channels in the store. */
interface StoredState {
  /** Seqs of the resume points whose channels the session may read. */
  readonly seqsOf: ReadonlyMap<ResumePoint, ResumeSeqs | undefined>;
  /** Ends of streams since `endsSinceMs`, in the session's channels. */
  readonly ends: readonly StreamEnd[];
  /** See `endsMissedSince`. */
  readonly endsSinceMs: number | undefined;
  /** Groups of which the user is a member. */
  readonly groupIds: ReadonlySet<string>;
}

export interface Resume {
  /** Personal channels in which the client lacks messages. */
  readonly personal: readonly ChannelRef[];
  readonly results: readonly ResumeResult[];
}

/**
 * Compares the client's resume points with the store. Starts the session at the resulting
 * positions. Without resume points and missed ends, changes nothing and returns no results.
 */
export function applyResume(
  session: Session,
  points: readonly ResumePoint[],
  { seqsOf, ends, endsSinceMs, groupIds }: StoredState,
  groups: Groups,
): Resume {
  if (points.length === 0 && ends.length === 0) return NOTHING_TO_RESUME;
  const outcomes = points.map((point) => {
    const seqs = mayResume(point, groupIds) ? seqsOf.get(point) : undefined;
    return seqs === undefined ? denied(point) : resumeOutcome(point, seqs);
  });
  noteRecentPersonal(session, outcomes);
  if (ends.length > 0) {
    const positions = outcomes.map(({ point }) => point);
    addMissedEnds(session, lackedEnds(ends, session.uid, positions, endsSinceMs ?? 0), groups);
  }
  const personal = startAtResumePoints(session, outcomes, groups);
  return { personal, results: outcomes.map(({ result }) => result) };
}

export function mayResume({ channel }: ResumePoint, groupIds: ReadonlySet<string>): boolean {
  return channel.type !== GROUP_CHANNEL || groupIds.has(channel.id);
}

/** Adds the missed ends to the backlogs of their channels, oldest first. */
function addMissedEnds(session: Session, ends: readonly StreamEnd[], groups: Groups): void {
  for (const end of ends.toReversed()) {
    const isGroup = end.key.startsWith(`${GROUP_CHANNEL}:`);
    const scope = isGroup ? groups.get(end.key.slice(2)) : PERSONAL_CHANNELS;
    scope?.backlogOf(session)?.addMissedEnd(end);
  }
}

/**
 * Sets the positions at which the session starts in its channels. Returns the personal channels in
 * which the client lacks messages.
 */
function startAtResumePoints(
  session: Session,
  outcomes: readonly ResumeOutcome[],
  groups: Groups,
): readonly ChannelRef[] {
  const personal = new Map<string, ChannelRef>();
  for (const { point, headSeq, result } of outcomes) {
    const { channel, lastSeq } = point;
    if (result.status !== "ok") continue;
    const key = channelKey(channel, session.uid);
    const isGroup = channel.type === GROUP_CHANNEL;
    const scope = isGroup ? groups.get(channel.id) : PERSONAL_CHANNELS;
    const backlog = scope?.backlogOf(session);
    backlog?.advance(key, lastSeq);
    if (!isGroup) {
      if (headSeq > lastSeq) personal.set(key, channel);
    } else if (backlog !== undefined) backlog.resume(headSeq);
    // If there is no backlog, the user was removed from the group during the join. The position is
    // kept, because the user may become a member again.
    else session.rememberSeq(channel.id, { seq: lastSeq, isResumed: true });
  }
  return [...personal.values()];
}

/**
 * Records the recent positions in personal channels, so that no message is pushed twice: a node
 * that was disconnected may deliver messages that the client has already received from another
 * node.
 */
function noteRecentPersonal(session: Session, outcomes: readonly ResumeOutcome[]): void {
  const personal = outcomes.flatMap(({ point, result: { status } }) => {
    const { channel, lastSeq: messageSeq, lastId: messageId = 0 } = point;
    const isUsable = channel.type !== GROUP_CHANNEL && status === "ok";
    const key = channelKey(channel, session.uid);
    return isUsable && messageId > 0 ? [{ key, messageSeq, messageId }] : [];
  });
  const newestId = Math.max(0, ...personal.map((message) => message.messageId));
  const sinceMs = messageTimeMs(newestId) - LATELY_MS;
  for (const { key, ...position } of personal)
    if (messageTimeMs(position.messageId) >= sinceMs) session.noteRead(key, position);
}

function denied(point: ResumePoint): ResumeOutcome {
  const { channel } = point;
  return { point, headSeq: 0, result: { channel, status: "denied", headSeq: 0 } };
}

/**
 * Compares a resume point with the store. The store may lack messages after a restore or a
 * fail-over. The CONNACK then contains the last common seq, so that the client receives it before
 * any message or SENDACK. Otherwise, the SENDACK of a later message would suggest to the client
 * that it has all earlier messages.
 */
function resumeOutcome(
  { channel, lastSeq, lastId = 0 }: ResumePoint,
  { headSeq, lastCommonSeq }: ResumeSeqs,
): ResumeOutcome {
  const validSeq = Math.min(lastCommonSeq, headSeq);
  return {
    point: { channel, lastSeq: validSeq, lastId },
    headSeq,
    result: { channel, status: "ok", headSeq: validSeq < lastSeq ? validSeq : headSeq },
  };
}
