// How a connect becomes a session: checked, entered in the hub, opened by the broker, subscribed to
// its topics, welcomed with a connack, caught up. Whatever awaits here may find the session ended
// afterwards; nothing is sent to one that is.

import { BrokerError, type CloseReason } from "../broker/errors.ts";
import { type ChannelRef, channelKey, GROUP_CHANNEL, messageTimeMs } from "../broker/model.ts";
import type { ChannelStore, Cluster, MessageStore } from "../broker/ports.ts";
import type { SessionDirectory } from "../broker/session-directory.ts";
import type { OpenResult, Sessions } from "../broker/sessions.ts";
import type { TokenGate } from "../broker/token-gate.ts";
import type { GatewayMetrics } from "../observe/metrics.ts";
import type {
  Codec,
  ConnectionLimits,
  Operation,
  Ref,
  ResumePoint,
  ResumeResult,
} from "../protocol/protocol.ts";
import type { Connection } from "../transport/types.ts";
import { PERSONAL } from "./backlog.ts";
import type { CatchUps } from "./catch-up.ts";
import type { Groups } from "./groups.ts";
import type { Hub } from "./hub.ts";
import { type InboxParts, pullInbox } from "./inbox.ts";
import type { Resync } from "./resync.ts";
import { Session } from "./session.ts";

export type Connect = Extract<Operation, { readonly kind: "connect" }>;

/** What planning asks. */
export interface PlanPorts {
  readonly store: Pick<ChannelStore, "groupsAmong"> & Pick<MessageStore, "resumeSeqs">;
  readonly hub: Pick<Hub, "subscribe">;
  readonly groups: Groups;
  readonly directory: Pick<SessionDirectory, "check">;
}

/** By what a session becomes live. */
interface LivePorts extends InboxParts {
  readonly catchUps: Pick<CatchUps, "connect">;
  readonly resync: Pick<Resync, "memberships">;
  readonly metrics: InboxParts["metrics"] & Pick<GatewayMetrics, "catchingUp">;
}

export interface OpeningContext extends LivePorts {
  readonly catchUps: Pick<CatchUps, "connect" | "lag">;
  readonly store: LivePorts["store"] & PlanPorts["store"];
  readonly cluster: LivePorts["cluster"] & Pick<Cluster, "barrier">;
  readonly hub: Hub;
  readonly groups: Groups;
  readonly sessions: Sessions;
  readonly directory: Pick<SessionDirectory, "check" | "endedBy" | "remove">;
  readonly nodeId: string;
  readonly clock: () => number;
  /** Sent to the client in its connack. */
  readonly clientLimits: ConnectionLimits;
  readonly maxHeldBytes: number;
  /** See `Session`; milliseconds. */
  readonly resendAfterMs: number;
  /** Of one user on this node; 0 = no limit. */
  readonly maxSessionsPerUser: number;
  /** By which tokens are checked. */
  readonly tokens: Pick<TokenGate, "attempt">;
  /**
   * In which sessions wait to be opened, so that thousands that come at once do not all ask the
   * store at once.
   */
  inTurn<T>(step: () => Promise<T>): Promise<T>;
  nextSessionId(): string;
}

/** More than a node catches up from before it listened to a user. */
const LATELY_MS = 10_000;

/** A channel that the connect named. */
interface Named {
  /** What the client has of what is there now. */
  readonly point: ResumePoint;
  readonly result: ResumeResult;
}

/** What must be known before the connack. */
interface JoinPlan {
  /** How many groups the session joins. */
  readonly groups: number;
  /** The personal channels that it resumes. */
  readonly personal: readonly ChannelRef[];
  readonly results: readonly ResumeResult[];
}

/** What a connect named and its login found. */
interface JoinWishes {
  /** Groups that the user may be in. */
  readonly candidates: readonly string[];
  readonly points: readonly ResumePoint[];
}

/** The session a connect asks for, not yet known to anybody. */
export function prepareSession(
  connect: Connect,
  wire: { readonly connection: Connection; readonly codec: Codec },
  context: OpeningContext,
): Session {
  return new Session({
    connection: wire.connection,
    codec: wire.codec,
    sessionId: context.nextSessionId(),
    uid: connect.uid,
    maxHeldBytes: context.maxHeldBytes,
    resendAfterMs: context.resendAfterMs,
  });
}

/**
 * Enters the hub before the store, so that a request to end this session finds it; the node listens
 * to the user only once the client proved who it is. The bound is asked last: a session makes room
 * for itself where it replaces or kicks another. Throws `overloaded`, `unavailable` and what
 * `Sessions.open` does.
 */
export async function admit(
  session: Session,
  connect: Connect,
  context: OpeningContext,
): Promise<OpenResult> {
  const { hub, sessions, directory } = context;
  if (session.ended !== undefined) throw new BrokerError("unavailable"); // it left while it waited
  hub.enter(session);
  const opened = await sessions.open({
    sessionId: session.sessionId,
    nodeId: context.nodeId,
    uid: connect.uid,
    token: connect.token,
    flag: connect.flag,
    deviceId: connect.deviceId,
    level: connect.level,
    continues: connect.session,
  });
  if (opened.kind === "ended") return opened;
  try {
    await takeRoom(session, context);
    return opened;
  } finally {
    if (!session.isAdmitted) await directory.remove(opened.record);
  }
}

/** Those that the session ended have left when their node has heard of it. */
async function takeRoom(
  session: Session,
  { hub, cluster, maxSessionsPerUser: most }: OpeningContext,
): Promise<void> {
  const isThere = (one: Session) => one.isAdmitted && one.ended === undefined;
  const isFull = () => most > 0 && hub.sessionsOf(session.uid).filter(isThere).length >= most;
  if (isFull()) await cluster.barrier();
  if (isFull())
    throw new BrokerError("overloaded", {
      message: `A user has at most ${most} sessions on a node`,
    });
  session.isAdmitted = true;
}

/**
 * Subscribes the node to the user and the groups, so that the session is live from the connack on,
 * and finds out where each named channel stands. Two round trips: subscribe, then all reads, which
 * show what changed before the node was subscribed. Throws `unavailable`.
 */
export async function planJoin(
  session: Session,
  { candidates, points }: JoinWishes,
  { store, hub, groups, directory }: PlanPorts,
): Promise<JoinPlan> {
  const { uid } = session;
  await Promise.all([hub.subscribe(session), groups.subscribe(session, candidates)]);
  const may = new Set(candidates);
  const [, { groups: found, isAll }, stands] = await Promise.all([
    groups.listenAll(session),
    store.groupsAmong(uid, candidates),
    groups.slice().each(points, async (point): Promise<Named> => {
      const { channel } = point;
      const isOut = channel.type === GROUP_CHANNEL && !may.has(channel.id);
      return isOut ? denied(point) : stand(uid, point, store);
    }),
    directory.check(session),
  ]);
  if (!isAll) session.membershipsStale = true;
  const mine = new Set(found);
  const named = stands.map((one) => {
    const { channel } = one.point;
    const isOut = channel.type === GROUP_CHANNEL && !mine.has(channel.id);
    return isOut ? denied(one.point) : one;
  });
  noteNamed(session, named);
  const resumed = beginWhereNamed(session, named, groups);
  const slice = groups.slice();
  for (const id of session.joining ?? []) {
    if (slice.isUsedUp()) await slice.rest();
    const backlog = groups.get(id)?.backlogOf(session);
    if (!mine.has(id)) groups.takeOut(session, id);
    else if (backlog !== undefined) backlog.status = backlog.isResumed ? "reading" : "early";
  }
  const results = named.map(({ result }) => result);
  return { groups: found.length, personal: resumed, results };
}

/**
 * Of the named channels that the client may resume, the session has what the client has. Returns
 * the personal ones, each once.
 */
function beginWhereNamed(
  session: Session,
  named: readonly Named[],
  groups: Groups,
): readonly ChannelRef[] {
  const personal = new Map<string, ChannelRef>();
  for (const { point, result } of named) {
    const { channel, lastSeq } = point;
    if (result.status !== "ok") continue;
    const key = channelKey(channel, session.uid);
    const isGroup = channel.type === GROUP_CHANNEL;
    const place = isGroup ? groups.get(channel.id) : PERSONAL;
    const backlog = place?.backlogOf(session);
    backlog?.advance(key, lastSeq);
    if (!isGroup) personal.set(key, channel);
    else if (backlog !== undefined) backlog.isResumed = true;
    else session.rememberSeq(channel.id, { seq: lastSeq, isResumed: true }); // its user was removed meanwhile, and may be back
  }
  return [...personal.values()];
}

/**
 * A node that is cut off may catch up from a little before it listened to the user. The client may
 * have got that at another node: of those personal channels that it heard last, what it has is not
 * pushed again.
 */
function noteNamed(session: Session, named: readonly Named[]): void {
  const personal = named.flatMap(({ point, result: { status } }) => {
    const { channel, lastSeq: messageSeq, lastId: messageId = 0 } = point;
    const isNamed = channel.type !== GROUP_CHANNEL && status === "ok";
    const key = channelKey(channel, session.uid);
    return isNamed && messageId > 0 ? [{ key, messageSeq, messageId }] : [];
  });
  const newestId = Math.max(0, ...personal.map((one) => one.messageId));
  const sinceMs = messageTimeMs(newestId) - LATELY_MS;
  for (const { key, ...place } of personal)
    if (messageTimeMs(place.messageId) >= sinceMs) session.noteRead(key, place);
}

function denied(point: ResumePoint): Named {
  const { channel } = point;
  return { point, result: { channel, status: "denied", headSeq: 0 } };
}

/**
 * How a named channel stands. A client may remember more than a restored store has, or what was
 * lost in a fail-over: it gets the seq through which it shares the history before anything else
 * comes, so that no receipt is taken for a sign that it has what precedes it.
 */
async function stand(
  uid: string,
  { channel, lastSeq, lastId = 0 }: ResumePoint,
  store: PlanPorts["store"],
): Promise<Named> {
  const key = channelKey(channel, uid);
  const found = await store.resumeSeqs(key, lastSeq, lastId);
  const { headSeq, lastCommonSeq } = found;
  const has = Math.min(lastCommonSeq, headSeq);
  return {
    point: { channel, lastSeq: has, lastId },
    result: { channel, status: "ok", headSeq: has < lastSeq ? has : headSeq },
  };
}

/**
 * Sends the connack with the session's name, then what the session missed and its commands, and
 * makes it live. `ref`: of the connect. Harmless when the session is over. Throws `unavailable`.
 */
export async function welcome(
  session: Session,
  { name, ref, plan }: { readonly name: string; readonly ref: Ref; readonly plan: JoinPlan },
  context: OpeningContext,
): Promise<void> {
  if (session.ended !== undefined) return;
  session.reply({
    kind: "connack",
    ref,
    version: session.codec.version,
    sessionId: name,
    nodeId: context.nodeId,
    serverTimeMs: context.clock(),
    limits: context.clientLimits,
    resume: plan.results,
  });
  session.isWelcome = true;
  await goLive(session, plan, context);
}

/**
 * Gives the session what it missed, and makes it live. Call after the connack. Throws
 * `unavailable`.
 */
export async function goLive(
  session: Session,
  { personal }: Pick<JoinPlan, "personal">,
  ports: LivePorts,
): Promise<void> {
  ports.metrics.catchingUp(1);
  try {
    await Promise.all([
      connect(session, personal, ports),
      pullInbox(session, ports), // commands have an order of their own
    ]);
  } finally {
    ports.metrics.catchingUp(-1);
  }
}

/**
 * Memberships may have changed since the groups were read: of that, only what ended took effect at
 * once.
 */
async function connect(
  session: Session,
  personal: readonly ChannelRef[],
  { catchUps, resync }: LivePorts,
): Promise<void> {
  await catchUps.connect(session, personal);
  session.hasJoined = true;
  if (session.membershipsStale) await resync.memberships(session);
  session.endResume();
}

/**
 * How the connection closes after a connect that failed with `error`: whether the client should
 * come back.
 */
export function refusalReason(error: unknown): CloseReason {
  if (!(error instanceof BrokerError)) return "unavailable";
  switch (error.code) {
    case "unsupported_version":
      return "protocol_error";
    case "unauthorized":
    case "reserved_uid":
    case "bad_id":
    case "bad_request":
      return "auth_failed";
    case "rate_limited":
      return "rate_limited";
    default:
      return "unavailable";
  }
}
