// How a connect becomes a session: checked, entered in the hub, opened by the broker, welcomed with a connack, joined to its channels.
// Whatever awaits here may find the session ended afterwards; nothing is sent to one that is.

import { BrokerError, type CloseReason } from "../broker/errors.ts";
import type { SessionRecord } from "../broker/model.ts";
import type { Sessions } from "../broker/sessions.ts";
import type {
  Codec,
  ConnectionLimits,
  Operation,
} from "../protocol/protocol.ts";
import type { Connection } from "../transport/types.ts";
import { type JoinParts, joinChannels, planJoin } from "./join.ts";
import { Session } from "./session.ts";

export type Connect = Extract<Operation, { readonly kind: "connect" }>;

export interface OpeningContext extends JoinParts {
  readonly sessions: Sessions;
  readonly nodeId: string;
  readonly clock: () => number;
  readonly protocolVersion: number;
  /** Told to the client in its connack. */
  readonly told: ConnectionLimits;
  readonly maxHeldBytes: number;
  /** Of one user on this node; 0 = no limit. */
  readonly maxSessionsPerUser: number;
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
 * Enters the hub before the directory, so that whoever is told to end this session finds it. The bound is asked last: a session makes room
 * for itself where it replaces or kicks another. Throws `overloaded` and what `Sessions.open` does.
 */
export async function admit(
  session: Session,
  connect: Connect,
  context: OpeningContext,
): Promise<SessionRecord> {
  const { hub, sessions, maxSessionsPerUser } = context;
  await hub.enter(session);
  const record = await sessions.open({
    sessionId: session.sessionId,
    nodeId: context.nodeId,
    uid: connect.uid,
    token: connect.token,
    flag: connect.flag,
    deviceId: connect.deviceId,
    level: connect.level,
  });
  const others = hub.sessionsOf(session.uid).filter((one) => one.isAdmitted);
  if (maxSessionsPerUser === 0 || others.length < maxSessionsPerUser) {
    session.isAdmitted = true;
    return record;
  }
  await sessions.close(record);
  throw new BrokerError("overloaded", {
    message: `A user has at most ${maxSessionsPerUser} sessions on a node`,
  });
}

/** Sends the connack, then what the session missed, and makes it live. */
export async function welcome(
  session: Session,
  connect: Connect,
  context: OpeningContext,
): Promise<void> {
  const plan = await planJoin(session.uid, connect.resume, context);
  if (session.ended !== undefined) return;
  session.reply({
    kind: "connack",
    ref: connect.ref,
    version: context.protocolVersion,
    sessionId: session.sessionId,
    nodeId: context.nodeId,
    serverTimeMs: context.clock(),
    limits: context.told,
    resume: plan.results,
  });
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
    default:
      return "unavailable";
  }
}
