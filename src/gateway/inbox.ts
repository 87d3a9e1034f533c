// Delivers commands to a user's sessions. A stored command has a copy in the inbox of each
// recipient, numbered by `inboxSeq`. A new session first receives its inbox, in order and as fast
// as its client reads, and then the commands that arrive live. A stored command that arrives while
// the inbox is being read is also found in the inbox. Therefore no command is lost, repeated or
// pushed out of order.

import { channelSeenBy, GROUP_CHANNEL, type InboxCommand, type Message } from "../broker/model.ts";
import type { Cluster, ClusterEvent, InboxStore } from "../broker/ports.ts";
import type { GatewayMetrics } from "../observe/metrics.ts";
import type { FanOut } from "./fan-out-turns.ts";
import { concernOf, readJudged } from "./read-judged.ts";
import {
  type CommandPush,
  HELD_OVERHEAD_BYTES,
  type LiveRange,
  type Session,
  type UnreadInbox,
} from "./session.ts";
import { SharedFrames } from "./shared-frames.ts";

type CommandEvent = Extract<ClusterEvent, { readonly kind: "command" }>;

export interface InboxPorts {
  readonly store: Pick<InboxStore, "readInbox">;
  readonly cluster: Pick<Cluster, "recovery" | "delivered">;
  readonly metrics: Pick<GatewayMetrics, "commandsPushed">;
  readonly limits: {
    readonly pageMessages: number;
    readonly pageBytes: number;
    readonly maxUnreadBytes: number;
  };
}

/**
 * Pushes the inbox and then makes the session live for commands. Must be called after the CONNACK.
 * `firstPage` is the first page of the inbox if it has been read since the session entered the hub.
 */
export async function pullInbox(
  session: Session,
  ports: InboxPorts,
  firstPage?: readonly InboxCommand[],
): Promise<void> {
  const { inbox } = session;
  if (inbox === undefined) return;
  let page = firstPage;
  do {
    page ??= await readPage(session, inbox, ports);
    if (session.ended !== undefined) return;
    if (page.length > 0) {
      pushPage(session, page, ports);
      // The next page is read after the wait, because commands may be acknowledged during the wait.
      await session.readyForPage(ports.limits.maxUnreadBytes);
      if (session.ended !== undefined) return;
      inbox.hasMore = true;
    }
    page = undefined;
  } while (inbox.hasMore);
  session.inbox = undefined;
  session.inboxSeq = Math.max(session.inboxSeq, session.inboxLive?.to ?? 0);
  session.inboxLive = rangeOfLastRead(session);
  for (const push of inbox.unstored) {
    session.charge(-bytesOf(push.message));
    session.push(push);
  }
  ports.metrics.commandsPushed(inbox.unstored.length);
}

async function readPage(
  { uid, inboxSeq: afterSeq }: Session,
  inbox: UnreadInbox,
  { store, cluster, limits }: InboxPorts,
): Promise<readonly InboxCommand[]> {
  const { pageMessages: limit, pageBytes: maxBytes } = limits;
  inbox.hasMore = false; // a copy that arrives from now on may be missing from the page
  return readJudged(cluster, concernOf(uid), () =>
    store.readInbox(uid, afterSeq, { limit, maxBytes }),
  );
}

function pushPage(
  session: Session,
  page: readonly InboxCommand[],
  { metrics }: Pick<InboxPorts, "metrics">,
): void {
  let bytes = 0;
  for (const { inboxSeq, message } of page) {
    bytes += bytesOf(message);
    session.inboxSeq = inboxSeq;
    if (!isLiveCopy(session, inboxSeq)) session.push(pushOf(session.uid, inboxSeq, message));
  }
  skipLive(session);
  metrics.commandsPushed(page.length);
  session.rate?.pushedPage(page.length, bytes);
}

/** Pushes a command. Calls `onGap` for each session that lacks an earlier copy. */
export function deliverCommand(
  { message, copies }: Pick<CommandEvent, "message" | "copies">,
  target: {
    readonly origin: Session | undefined;
    readonly fanOut: FanOut;
    readonly sessionsOf: (uid: string) => readonly Session[];
    readonly onGap: (session: Session) => void;
  },
): number {
  const isGroup = message.channel.type === GROUP_CHANNEL;
  let frames = new SharedFrames();
  let pushed = 0;
  for (const { uid, inboxSeq } of copies) {
    if (!isGroup) frames = new SharedFrames(); // each user sees the other user's uid as channel id
    for (const session of target.sessionsOf(uid)) {
      const push = pushOf(uid, inboxSeq, message);
      const isOrigin = session === target.origin;
      if (session.inbox !== undefined) {
        if (!isOrigin) defer(session, session.inbox, push);
      } else if (!recordNext(session, inboxSeq)) {
        if (lacksCopy(session, inboxSeq)) target.onGap(session);
      } else if (!isOrigin) {
        const copies = frames; // `frames` is replaced for the next user
        target.fanOut.send(session, (receiver) =>
          receiver.pushShared(push, copies, `${receiver.codec.format} ${inboxSeq} ${push.isOwn}`),
        );
        pushed += 1;
      }
    }
  }
  target.fanOut.end();
  return pushed;
}

/** Records that commands may have been lost. Must be called before later copies are delivered. */
export function noteLostCommands(session: Session): void {
  if (session.inbox !== undefined) session.inbox.hasMore = true;
  else session.inboxLive ??= { from: 0, to: 0 };
}

export function mayLackCommands(session: Session, newestSeq: number): boolean {
  const { inbox, inboxSeq, inboxLive } = session;
  const isStartKnown = inboxSeq > 0 || inboxLive === undefined || inboxLive.from <= 1;
  // If the start is unknown, copies may be missing before the first copy that arrived live.
  return inbox !== undefined || !isStartKnown || lacksCopy(session, newestSeq);
}

function rangeOfLastRead({ inboxSeq }: Session): LiveRange | undefined {
  return inboxSeq === 0 ? undefined : { from: inboxSeq, to: inboxSeq };
}

/**
 * Returns true if the copy may be pushed now: it is not stored (`inboxSeq` 0), or it directly
 * follows the session's last live copy and is recorded as the last one. The first live copy may
 * have any `inboxSeq` higher than that of the copies that were read.
 */
function recordNext(session: Session, inboxSeq: number): boolean {
  if (inboxSeq === 0) return true;
  if (inboxSeq <= session.inboxSeq) return false;
  session.inboxLive ??= { from: inboxSeq, to: inboxSeq - 1 };
  if (inboxSeq !== session.inboxLive.to + 1) return false;
  session.inboxLive.to = inboxSeq;
  return true;
}

function lacksCopy(session: Session, inboxSeq: number): boolean {
  return inboxSeq > session.inboxSeq && !isLiveCopy(session, inboxSeq);
}

function isLiveCopy({ inboxLive }: Session, inboxSeq: number): boolean {
  if (inboxLive === undefined) return false;
  return inboxSeq >= inboxLive.from && inboxSeq <= inboxLive.to;
}

function skipLive(session: Session): void {
  const { inboxSeq, inboxLive } = session;
  if (isLiveCopy(session, inboxSeq)) session.inboxSeq = inboxLive?.to ?? inboxSeq;
}

/**
 * Until the session has caught up, keeps a command that is not stored. A stored command is read
 * from the inbox instead.
 */
function defer(session: Session, inbox: UnreadInbox, push: CommandPush): void {
  if (push.inboxSeq > 0) inbox.hasMore = true;
  else {
    inbox.unstored.push(push);
    session.charge(bytesOf(push.message));
  }
}

function pushOf(uid: string, inboxSeq: number, command: Message): CommandPush {
  const message = command.messageSeq === inboxSeq ? command : { ...command, messageSeq: inboxSeq };
  const channel = channelSeenBy(uid, message);
  return { kind: "command", channel, inboxSeq, message, isOwn: uid === message.fromUid };
}

function bytesOf({ payload }: Message): number {
  return payload.length + HELD_OVERHEAD_BYTES;
}
