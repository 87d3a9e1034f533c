// Commands on their way to a user's sessions: a new session is given its inbox in order, at the
// pace it reads, and from then on what comes live. A copy that comes while the inbox is read is
// found there, so nothing is lost, doubled or overtaken. State: none; it hangs on sessions.

import { channelSeenBy, GROUP_CHANNEL, type Message } from "../broker/model.ts";
import type { Cluster, ClusterEvent, InboxStore } from "../broker/ports.ts";
import type { GatewayMetrics } from "../observe/metrics.ts";
import type { Frames } from "../protocol/protocol.ts";
import { concernOf, readJudged } from "./read-judged.ts";
import {
  type CommandPush,
  HELD_OVERHEAD_BYTES,
  type LiveInbox,
  type Session,
  type UnreadInbox,
} from "./session.ts";

type CommandEvent = Extract<ClusterEvent, { readonly kind: "command" }>;

export interface InboxParts {
  readonly store: Pick<InboxStore, "readInbox">;
  readonly cluster: Pick<Cluster, "recovery" | "delivered">;
  readonly metrics: Pick<GatewayMetrics, "commandsPushed">;
  readonly limits: {
    /** Most commands and payload bytes read and pushed before the client must have read. */
    readonly pageMessages: number;
    readonly pageBytes: number;
    readonly maxUnreadBytes: number;
  };
}

/**
 * Gives the session what is in its inbox, then what comes. Call after the connack; what came since
 * the session entered is seen to.
 */
export async function pullInbox(session: Session, parts: InboxParts): Promise<void> {
  const { inbox } = session;
  if (inbox === undefined) return;
  do {
    inbox.hasMore = false;
    while (await pullPage(session, parts));
    if (session.ended !== undefined) return;
  } while (inbox.hasMore);
  session.inbox = undefined;
  session.inboxSeq = Math.max(session.inboxSeq, session.inboxLive?.to ?? 0);
  session.inboxLive = endOf(session);
  for (const push of inbox.unstored) {
    session.charge(-bytesOf(push.message));
    session.push(push);
  }
  parts.metrics.commandsPushed(inbox.unstored.length);
}

/**
 * Pushes what is read at once: what is acknowledged while the client is waited for must not come.
 * Tells whether there may be more.
 */
async function pullPage(session: Session, parts: InboxParts): Promise<boolean> {
  const { store, cluster, metrics, limits } = parts;
  const { pageMessages: limit, pageBytes: maxBytes } = limits;
  const { uid, inboxSeq: afterSeq } = session;
  const page = await readJudged(cluster, concernOf(uid), () =>
    store.readInbox(uid, afterSeq, { limit, maxBytes }),
  );
  if (session.ended !== undefined) return false;
  for (const { inboxSeq, message } of page) {
    session.inboxSeq = inboxSeq;
    if (!isLive(session, inboxSeq)) session.push(pushOf(uid, inboxSeq, message));
  }
  skipLive(session);
  metrics.commandsPushed(page.length);
  if (page.length === 0) return false;
  await session.writable(limits.maxUnreadBytes);
  return session.ended === undefined;
}

/**
 * Takes each copy to the sessions of its user but `origin`, encoded once per format and view;
 * `missed` is called with a session to which one before it did not come. Returns how many were
 * pushed.
 */
export function deliverCommand(
  { message, copies }: Pick<CommandEvent, "message" | "copies">,
  to: {
    readonly origin: Session | undefined;
    readonly sessionsOf: (uid: string) => readonly Session[];
    readonly missed: (session: Session) => void;
  },
): number {
  const isGroup = message.channel.type === GROUP_CHANNEL;
  let frames = new Map<string, Frames>();
  let pushed = 0;
  for (const { uid, inboxSeq } of copies) {
    if (!isGroup) frames = new Map(); // each calls a conversation by the other's name
    for (const session of to.sessionsOf(uid)) {
      const push = pushOf(uid, inboxSeq, message);
      const isOrigin = session === to.origin;
      if (session.inbox !== undefined) {
        if (!isOrigin) wait(session, session.inbox, push);
      } else if (!isNext(session, inboxSeq)) {
        if (isBehind(session, inboxSeq)) to.missed(session);
      } else if (!isOrigin) {
        session.pushShared(push, frames, `${session.codec.format} ${inboxSeq}`);
        pushed += 1;
      }
    }
  }
  return pushed;
}

/**
 * Copies may be lost: the first one that comes no longer counts as the next after an empty inbox,
 * and what is being read may have been read before them. To be called before any copy that was
 * published later is delivered.
 */
export function noteLostCommands(session: Session): void {
  if (session.inbox !== undefined) session.inbox.hasMore = true;
  else session.inboxLive ??= { from: 0, to: 0 };
}

/** A session that has every command as it came lacks none of an inbox whose newest has this seq. */
export function mayLackCommands(session: Session, newestSeq: number): boolean {
  const { inbox, inboxSeq, inboxLive } = session;
  const isBegun = inboxSeq > 0 || inboxLive === undefined || inboxLive.from <= 1;
  return inbox !== undefined || !isBegun || isBehind(session, newestSeq); // not begun: the first that came may not be the first after what it read
}

/** Where what comes live follows on; unknown when nothing was there to read. */
function endOf({ inboxSeq }: Session): LiveInbox | undefined {
  return inboxSeq === 0 ? undefined : { from: inboxSeq, to: inboxSeq };
}

/**
 * Whether the copy follows on what the session has, and then notes it; the first one after an empty
 * inbox was read does.
 */
function isNext(session: Session, inboxSeq: number): boolean {
  if (inboxSeq === 0) return true;
  if (inboxSeq <= session.inboxSeq) return false;
  session.inboxLive ??= { from: inboxSeq, to: inboxSeq - 1 };
  if (inboxSeq !== session.inboxLive.to + 1) return false;
  session.inboxLive.to = inboxSeq;
  return true;
}

/** The session does not have the copy. */
function isBehind(session: Session, inboxSeq: number): boolean {
  return inboxSeq > session.inboxSeq && !isLive(session, inboxSeq);
}

/** The session was given the copy as it came. */
function isLive({ inboxLive }: Session, inboxSeq: number): boolean {
  if (inboxLive === undefined) return false;
  return inboxSeq >= inboxLive.from && inboxSeq <= inboxLive.to;
}

/** What came live need not be read. */
function skipLive(session: Session): void {
  const { inboxSeq, inboxLive } = session;
  if (isLive(session, inboxSeq)) session.inboxSeq = inboxLive?.to ?? inboxSeq;
}

/** What is kept in the inbox will be found there. */
function wait(session: Session, inbox: UnreadInbox, push: CommandPush): void {
  if (push.inboxSeq > 0) inbox.hasMore = true;
  else {
    inbox.unstored.push(push);
    session.charge(bytesOf(push.message));
  }
}

function pushOf(uid: string, inboxSeq: number, found: Message): CommandPush {
  const message = found.messageSeq === inboxSeq ? found : { ...found, messageSeq: inboxSeq };
  const channel = channelSeenBy(uid, message);
  return { kind: "command", channel, inboxSeq, message };
}

function bytesOf({ payload }: Message): number {
  return payload.length + HELD_OVERHEAD_BYTES;
}
