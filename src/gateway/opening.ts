// Turns a CONNECT into a live session, in two steps. `logIn` passes the token gate, which limits
// guesses, waits for its turn, adds the session to the hub, verifies the credential and stores the
// login. With a connect hook, it first verifies the credential and asks the hook. `join` subscribes
// to the session's topics, reads its state, sends the CONNACK and then the missed messages. After
// each `await`, the session may have ended. Nothing is sent to a session that has ended.

import { BrokerError, type CloseReason } from "../broker/errors.ts";
import type { ConnectHook, Restrictions } from "../broker/hooks.ts";
import { channelKey } from "../broker/model.ts";
import type {
  Cluster,
  JoinState,
  ResumePosition,
  ResumeSeqs,
  SessionStore,
  StreamEnd,
  StreamStore,
} from "../broker/ports.ts";
import { mayRead } from "../broker/rights.ts";
import type { SessionDirectory } from "../broker/session-directory.ts";
import { nameSession } from "../broker/session-names.ts";
import type { LoginOutcome, Sessions } from "../broker/sessions.ts";
import type { TokenGate } from "../broker/token-gate.ts";
import { together } from "../lib/maybe-promise.ts";
import type { GatewayMetrics } from "../observe/metrics.ts";
import type { ConnectionLimits, Greeting, Ref, Reply, ResumePoint } from "../protocol/protocol.ts";
import { PERSONAL_CHANNELS } from "./backlog.ts";
import type { CatchUps } from "./catch-up.ts";
import type { CredentialExpiry } from "./expiry.ts";
import type { Groups } from "./groups.ts";
import type { Hub } from "./hub.ts";
import { type InboxPorts, pullInbox } from "./inbox.ts";
import { endsMissedSince, readMissedEnds } from "./missed-ends.ts";
import type { OpeningTurns } from "./opening-turns.ts";
import {
  CONNECT_WORK,
  type ConnectionRate,
  frameCost,
  type GreetingBytes,
  joiningCost,
  type UserRates,
} from "./rates.ts";
import { applyResume, mayResume, type Resume } from "./resume.ts";
import type { SessionResync } from "./resync.ts";
import type { Session } from "./session.ts";

export interface PlanPorts {
  readonly store: Pick<SessionStore, "joinState"> &
    Pick<StreamStore, "streamEnds" | "personalStreamEnds">;
  readonly hub: Pick<Hub, "subscribe">;
  readonly groups: Groups;
  readonly directory: Pick<SessionDirectory, "recheck">;
  readonly limits: InboxPorts["limits"];
}

interface LivePorts extends InboxPorts {
  readonly catchUps: Pick<CatchUps, "connect">;
  readonly resync: Pick<SessionResync, "updateMemberships">;
  readonly metrics: InboxPorts["metrics"] & Pick<GatewayMetrics, "catchingUp">;
}

/** A CONNECT that is being processed, and its session. */
interface Opening {
  readonly session: Session;
  readonly connect: Greeting;
  /** Size of the CONNECT frame. */
  readonly bytes: number;
  /** Work budget of the connection. */
  readonly rate: ConnectionRate;
}

export interface OpeningContext extends LivePorts {
  readonly catchUps: Pick<CatchUps, "connect" | "lag">;
  readonly store: LivePorts["store"] & PlanPorts["store"];
  readonly cluster: LivePorts["cluster"] & Pick<Cluster, "barrier">;
  readonly hub: Hub;
  readonly groups: Groups;
  readonly sessions: Pick<Sessions, "logIn" | "verify">;
  /** Called before each login. `undefined` if no hook is configured. */
  readonly connectHook?: ConnectHook | undefined;
  readonly directory: Pick<SessionDirectory, "recheck" | "endedBy" | "remove">;
  readonly nodeId: string;
  readonly clock: () => number;
  readonly clientLimits: ConnectionLimits;
  readonly maxHeldBytes: number;
  readonly resendAfterMs: number;
  /** Maximum number of one user's sessions on this node. 0 means no limit. */
  readonly maxSessionsPerUser: number;
  /** Limits guesses of tokens. */
  readonly tokens: Pick<TokenGate, "attempt">;
  readonly rates: UserRates;
  readonly greetings: GreetingBytes;
  readonly metrics: LivePorts["metrics"] & Pick<GatewayMetrics, "sessionOpened" | "worked">;
  readonly expiry: Pick<CredentialExpiry, "start" | "stop" | "expiresInS">;
  /** Limits the logins that access the store at the same time. */
  readonly openings: Pick<OpeningTurns, "run">;
  nextSessionId(): string;
}

const NO_ENDS: readonly StreamEnd[] = [];

type EnteredLogin = Extract<LoginOutcome, { readonly kind: "entered" }>;

interface PlanRequest {
  /** Ids of the groups that the login returned. */
  readonly candidates: readonly string[];
  readonly points: readonly ResumePoint[];
  /** See `endsMissedSince`. */
  readonly endsSinceMs: number | undefined;
}

/** The state of a session's user and channels, read after the session has subscribed. */
interface JoinReads {
  readonly state: JoinState;
  /** Seqs of the resume points whose channels the session may read. */
  readonly seqsOf: ReadonlyMap<ResumePoint, ResumeSeqs | undefined>;
  readonly ends: readonly StreamEnd[];
}

interface JoinPlan extends Resume, Pick<JoinState, "commands" | "streamKeys"> {
  readonly groupCount: number;
}

/**
 * Logs the session in. If the login is accepted, charges the CONNECT to the user. Throws the errors
 * of `Sessions.logIn` and of the hook, `overloaded` if the user has too many sessions on this node,
 * and `rate_limited` if the token gate refuses the attempt.
 */
export async function logIn(opening: Opening, context: OpeningContext): Promise<LoginOutcome> {
  const { session, connect } = opening;
  const { connectHook: hook } = context;
  if (hook !== undefined) session.restrictions = await askHook(hook, session, connect, context);
  const bearer = { address: session.connection.remoteAddress, uid: connect.uid };
  const outcome = await context.tokens.attempt(bearer, () =>
    context.openings.run(bytesToJoin(opening), () => enterAndLogIn(session, connect, context)),
  );
  if (outcome.kind === "entered") applyLogin(opening, outcome, context);
  return outcome;
}

function bytesToJoin({ connect, bytes }: Opening): number {
  return bytes - connect.token.length;
}

/**
 * Verifies the credential and calls the hook. The session is not yet in the hub or in the store, so
 * a slow hook delays only the logins that wait for its answers.
 */
async function askHook(
  hook: ConnectHook,
  session: Session,
  { uid, token, flag, deviceId }: Greeting,
  { sessions, tokens }: OpeningContext,
): Promise<Restrictions> {
  const { address } = session.connectionFacts;
  const device = { uid, token, flag, deviceId };
  await tokens.attempt({ address, uid }, () => sessions.verify(device));
  if (session.ended !== undefined) throw new BrokerError("unavailable");
  return hook.ask({ ...device, ...session.connectionFacts, isRefresh: false });
}

/**
 * Logs in a session. The session enters the hub first, so that a request to end the session finds
 * it. The user's sessions are counted after the login, because the login may end one of them.
 */
async function enterAndLogIn(
  session: Session,
  { uid, token, flag, deviceId, level, sessionName }: Greeting,
  context: OpeningContext,
): Promise<LoginOutcome> {
  const { hub, cluster, sessions, directory, nodeId, maxSessionsPerUser } = context;
  if (session.ended !== undefined) throw new BrokerError("unavailable");
  hub.enter(session);
  const { sessionId, restrictions } = session;
  const login = { sessionId, nodeId, uid, token, flag, deviceId, level, sessionName, restrictions };
  const outcome = await sessions.logIn(login);
  if (outcome.kind === "refused") return outcome;
  try {
    // After the barrier, the sessions that this login replaces have ended on this node.
    if (!hasRoom(session, context)) await cluster.barrier();
    if (!hasRoom(session, context))
      throw new BrokerError("overloaded", {
        message: `The user already has ${maxSessionsPerUser} sessions on this node. Close one of them first.`,
      });
    session.stage = "admitted";
    return outcome;
  } finally {
    if (!session.isAdmitted) await directory.remove(outcome.record);
  }
}

function hasRoom({ uid }: Session, { hub, maxSessionsPerUser: max }: OpeningContext): boolean {
  if (max === 0) return true;
  let active = 0;
  for (const { isAdmitted, ended } of hub.sessionsOf(uid))
    if (isAdmitted && ended === undefined) active += 1;
  return active < max;
}

function applyLogin(
  opening: Opening,
  { record, rights }: EnteredLogin,
  context: OpeningContext,
): void {
  const { session, bytes, rate } = opening;
  const { connection } = session;
  const { rates, greetings, metrics } = context;
  session.record = record;
  session.rights = rights;
  session.rate = rate;
  rate.chargeAlso(rates.addSession(record.uid, performance.now()));
  greetings.refund(connection.remoteAddress, bytes);
  chargeConnect(rate, frameCost(bytes) + CONNECT_WORK, metrics);
  connection.authenticated(record.uid);
  metrics.sessionOpened(record.flag);
}

function chargeConnect(
  rate: ConnectionRate,
  cost: number,
  metrics: OpeningContext["metrics"],
): void {
  rate.chargeUser(cost);
  metrics.worked("connect", cost);
}

/**
 * Makes a logged-in session live. Resolves when the missed messages have been sent. Throws
 * `FrameError` if a resume point or the client's encryption key in the CONNECT is invalid.
 */
export async function join(
  opening: Opening,
  login: EnteredLogin,
  context: OpeningContext,
): Promise<void> {
  const { session, connect, rate } = opening;
  const { order, groups: candidates, newestId, expiresAtMs } = login;
  const { metrics } = context;
  const points = connect.finishDecoding();
  chargeConnect(rate, joiningCost(points.length), metrics);
  if (expiresAtMs !== undefined) context.expiry.start(session, expiresAtMs);
  const connectedMs = context.clock();
  const canResume = !session.codec.acknowledges;
  const away = { sessionName: connect.sessionName, points, canResume };
  const endsSinceMs = endsMissedSince(away, connectedMs); // `undefined` for a new client
  const plan = await context.openings.run(bytesToJoin(opening), () => {
    if (session.ended !== undefined) throw new BrokerError("unavailable"); // while it waited
    return planJoin(session, { candidates, points, endsSinceMs }, context);
  });
  chargeConnect(rate, joiningCost(plan.groupCount), metrics);
  const { sessionId } = session;
  const times = { connectedMs, endsSinceMs: endsSinceMs ?? connectedMs };
  const sessionName = nameSession({ sessionId, order, ...times });
  await welcome(session, { sessionName, ref: connect.ref, newestId, plan }, context);
}

/**
 * Subscribes to the session's topics, reads its state, and sets the positions at which the session
 * starts in its channels.
 */
export async function planJoin(
  session: Session,
  request: PlanRequest,
  ports: PlanPorts,
): Promise<JoinPlan> {
  const { points, endsSinceMs } = request;
  const candidates =
    session.rights === undefined
      ? request.candidates
      : request.candidates.filter((id) => session.mayReadGroup(id));
  if (endsSinceMs !== undefined) recordEndsFromNowOn(session);
  const { state, seqsOf, ends } = await subscribeAndRead(
    session,
    { candidates, points, endsSinceMs },
    ports,
  );
  const { commands, streamKeys, groups, isEntered, isAll } = state;
  if (!isEntered) await ports.directory.recheck(session);
  if (!isAll) session.membershipsStale = true;
  const groupIds = new Set(groups);
  const stored = { seqsOf, ends, endsSinceMs, groupIds };
  const resume = applyResume(session, points, stored, ports.groups);
  await applyMemberships(session, groupIds, ports.groups);
  return { groupCount: groupIds.size, ...resume, commands, streamKeys };
}

/**
 * Makes the backlogs record the end event of each stream that ends from now on. Earlier ends are
 * read from the store.
 */
function recordEndsFromNowOn(session: Session): void {
  session.mayMissEnds = true;
  const personal = PERSONAL_CHANNELS.backlogOf(session);
  if (personal !== undefined) personal.mayMissEnds = true;
}

/** Subscribes to the session's topics before it reads the state, so that no change is missed. */
async function subscribeAndRead(
  session: Session,
  { candidates, points, endsSinceMs }: PlanRequest,
  { store, hub, groups, limits }: PlanPorts,
): Promise<JoinReads> {
  const { uid, rights } = session;
  const [, isListening] = await together([
    hub.subscribe(session),
    groups.subscribe(session, candidates),
  ]);
  const candidateIds = new Set(candidates);
  const readable = points.filter(
    (point) => mayResume(point, candidateIds) && mayRead(rights, point.channel),
  );
  const [, state, ends] = await together([
    isListening ? undefined : groups.listenAll(session),
    store.joinState({
      session,
      groups: candidates,
      positions: readable.map((point) => positionOf(uid, point)),
      inboxPage: { limit: limits.pageMessages, maxBytes: limits.pageBytes },
    }),
    endsSinceMs === undefined ? NO_ENDS : readMissedEnds(uid, candidates, endsSinceMs, store),
  ]);
  const seqsOf = new Map(readable.map((point, at) => [point, state.resumeSeqs[at]]));
  return { state, seqsOf, ends };
}

/**
 * Removes the session from groups of which its user is no longer a member. Decides for each other
 * group whether missed messages are read before the session goes live.
 */
async function applyMemberships(
  session: Session,
  groupIds: ReadonlySet<string>,
  groups: Groups,
): Promise<void> {
  const slice = groups.slice();
  for (const id of session.joining ?? []) {
    if (slice.shouldYield()) await slice.yield();
    const backlog = groups.get(id)?.backlogOf(session);
    if (!groupIds.has(id)) groups.removeSession(session, id);
    else if (backlog !== undefined) backlog.status = backlog.isResumed ? "reading" : "early";
  }
}

function positionOf(uid: string, { channel, lastSeq, lastId = 0 }: ResumePoint): ResumePosition {
  return { key: channelKey(channel, uid), lastSeq, lastId };
}

type Connack = Extract<Reply, { readonly kind: "connack" }>;

/** Returns the CONNACK of a connect or of a refresh. */
export function connackOf(
  { codec }: Session,
  fields: Pick<Connack, "ref" | "sessionId" | "resume" | "newestId" | "expiresInS">,
  { nodeId, clock, clientLimits }: Pick<OpeningContext, "nodeId" | "clock" | "clientLimits">,
): Connack {
  return {
    ...{ kind: "connack", version: codec.version, nodeId },
    ...{ serverTimeMs: clock(), limits: clientLimits },
    ...fields,
  };
}

interface Welcome {
  /** Name that the client sends to continue the session. */
  readonly sessionName: string;
  readonly ref: Ref;
  readonly newestId: number;
  readonly plan: JoinPlan;
}

async function welcome(
  session: Session,
  { sessionName, ref, newestId, plan }: Welcome,
  context: OpeningContext,
): Promise<void> {
  if (session.ended !== undefined) return;
  const expiresInS = context.expiry.expiresInS(session); // `undefined` without a JWT or a hook
  const fields = { sessionId: sessionName, newestId };
  if (expiresInS !== undefined) session.connack = fields;
  const connack = { ref, ...fields, resume: plan.results, expiresInS };
  session.reply(connackOf(session, connack, context));
  session.stage = "connected";
  await goLive(session, plan, context);
}

/** Makes a session live. Must be called after the CONNACK was sent. */
export async function goLive(
  session: Session,
  plan: Pick<JoinPlan, "personal" | "commands" | "streamKeys">,
  ports: LivePorts,
): Promise<void> {
  ports.metrics.catchingUp(1);
  try {
    await Promise.all([
      catchUp(session, plan, ports),
      pullInbox(session, ports, plan.commands), // commands are ordered independently of messages
    ]);
  } finally {
    ports.metrics.catchingUp(-1);
  }
}

async function catchUp(
  session: Session,
  { personal, streamKeys }: Pick<JoinPlan, "personal" | "streamKeys">,
  { catchUps, resync }: LivePorts,
): Promise<void> {
  await catchUps.connect(session, personal, streamKeys);
  session.stage = "joined";
  if (session.membershipsStale) await resync.updateMemberships(session);
  session.endResume();
}

/**
 * Returns the close reason for a failed CONNECT. The reason decides whether the client reconnects.
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
    case "token_expired":
      return "token_expired";
    case "banned":
      return "banned";
    case "refused_by_hook":
      // Without a time to wait, the refusal is final.
      return error.retryAfterMs === undefined ? "auth_failed" : "unavailable";
    case "rate_limited":
      return "rate_limited";
    default:
      return "unavailable";
  }
}
