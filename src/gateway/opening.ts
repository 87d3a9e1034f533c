// How a connect becomes a session: checked, entered in the hub, opened by the broker, welcomed with a connack, joined to its channels.
// Whatever awaits here may find the session ended afterwards; nothing is sent to one that is.

import { BrokerError, type CloseReason } from "../broker/errors.ts";
import type { SessionDirectory } from "../broker/session-directory.ts";
import type { Opened, Sessions } from "../broker/sessions.ts";
import type { TokenGate } from "../broker/token-gate.ts";
import type {
  Codec,
  ConnectionLimits,
  Operation,
  Ref,
} from "../protocol/protocol.ts";
import type { Connection } from "../transport/types.ts";
import {
  type JoinParts,
  type JoinPlan,
  joinChannels,
  type PlanPorts,
} from "./join.ts";
import { Session } from "./session.ts";

export type Connect = Extract<Operation, { readonly kind: "connect" }>;

export interface OpeningContext extends JoinParts {
  readonly store: JoinParts["store"] & PlanPorts["store"];
  readonly sessions: Sessions;
  readonly directory: Pick<SessionDirectory, "check" | "endedBy" | "remove">;
  readonly nodeId: string;
  readonly clock: () => number;
  readonly protocolVersion: number;
  /** Told to the client in its connack. */
  readonly told: ConnectionLimits;
  readonly maxHeldBytes: number;
  /** Of one user on this node; 0 = no limit. */
  readonly maxSessionsPerUser: number;
  /** By which tokens are checked. */
  readonly tokens: Pick<TokenGate, "attempt">;
  /** In which sessions wait to be opened, so that thousands that come at once do not all ask the store at once. */
  inTurn<T>(step: () => Promise<T>): Promise<T>;
  nextSessionId(): string;
}

/** The session a connect asks for, not yet known to anybody. Throws `unsupported_version`. */
export function prepareSession(
  connect: Connect,
  wire: { readonly connection: Connection; readonly codec: Codec },
  context: OpeningContext,
): Session {
  if (connect.version !== context.protocolVersion)
    throw new BrokerError("unsupported_version");
  return new Session({
    connection: wire.connection,
    codec: wire.codec,
    sessionId: context.nextSessionId(),
    uid: connect.uid,
    maxHeldBytes: context.maxHeldBytes,
  });
}

/**
 * Enters the hub before the store, so that a request to end this session finds it; the node listens to the user only once the client proved who it is.
 * The bound is asked last: a session makes room for itself where it replaces or kicks another. Throws `overloaded`, `unavailable` and what
 * `Sessions.open` does.
 */
export async function admit(
  session: Session,
  connect: Connect,
  context: OpeningContext,
): Promise<Opened> {
  const { hub, sessions, directory } = context;
  if (session.ended !== undefined) throw new BrokerError("unavailable"); // it left while it stood in line
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
  const isFull = () =>
    most > 0 && hub.sessionsOf(session.uid).filter(isThere).length >= most;
  if (isFull()) await cluster.barrier();
  if (isFull())
    throw new BrokerError("overloaded", {
      message: `A user has at most ${most} sessions on a node`,
    });
  session.isAdmitted = true;
}

/**
 * Sends the connack with the session's name, then what the session missed and its commands, and makes it live. `ref`: of the connect. Harmless
 * when the session is over. Throws `unavailable`.
 */
export async function welcome(
  session: Session,
  {
    name,
    ref,
    plan,
  }: { readonly name: string; readonly ref: Ref; readonly plan: JoinPlan },
  context: OpeningContext,
): Promise<void> {
  if (session.ended !== undefined) return;
  session.reply({
    kind: "connack",
    ref,
    version: context.protocolVersion,
    sessionId: name,
    nodeId: context.nodeId,
    serverTimeMs: context.clock(),
    limits: context.told,
    resume: plan.results,
  });
  session.isWelcome = true;
  await joinChannels(session, plan, context);
}

/** How the connection closes after a connect that failed with `error`: whether the client should come back. */
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
