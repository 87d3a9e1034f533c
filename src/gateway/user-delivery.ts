// Delivers pushes to the sessions of individual users instead of a group: personal messages,
// messages for only some members, events in personal channels, and conversation changes.

import { type ChannelEvent, channelSeenBy, GROUP_CHANNEL, type Message } from "../broker/model.ts";
import type { ClusterEvent } from "../broker/ports.ts";
import { mayRead } from "../broker/rights.ts";
import type { FanOut } from "./fan-out-turns.ts";
import type { DeferredPush, Session } from "./session.ts";
import { SharedFrames } from "./shared-frames.ts";

type ConversationEvent = Extract<ClusterEvent, { readonly kind: "conversation" }>;

export type SessionsOf = (uid: string) => readonly Session[];

export function pairOf({
  fromUid,
  channel,
}: Pick<Message, "fromUid" | "channel">): readonly string[] {
  return channel.id === fromUid ? [fromUid] : [fromUid, channel.id];
}

export function deliverMessage(
  message: Message,
  receivers: {
    readonly uids: readonly string[];
    readonly origin: Session | undefined;
    readonly fanOut: FanOut;
  },
  sessionsOf: SessionsOf,
): number {
  const isGroup = message.channel.type === GROUP_CHANNEL;
  const { fanOut } = receivers;
  let push: DeferredPush | undefined;
  let count = 0;
  for (const uid of receivers.uids) {
    if (!isGroup) push = undefined; // the two users see different channel ids
    for (const session of sessionsOf(uid)) {
      if (session === receivers.origin) continue;
      if (!isGroup && !session.lacks(message)) continue;
      // A message that is not stored is pushed only to sessions that already have their CONNACK.
      if (message.messageSeq === 0 && !session.hasConnack) continue;
      count += 1;
      if (session.personal?.isHolding) {
        session.personal.receiveMessage(message);
        continue;
      }
      push ??= messagePush(message);
      fanOut.send(session, push);
    }
  }
  fanOut.end();
  return count;
}

/**
 * Pushes an event in a personal channel to both users. Returns the number of their sessions, not
 * counting `origin`.
 */
export function deliverEvent(
  event: ChannelEvent,
  origin: Session | undefined,
  sessionsOf: SessionsOf,
): number {
  let count = 0;
  for (const uid of pairOf(event)) {
    const sessions = sessionsOf(uid);
    if (sessions.length === 0) continue;
    const channel = channelSeenBy(uid, event);
    const push = { kind: "event", channel, event } as const;
    const frames = new SharedFrames();
    for (const session of sessions) {
      if (session === origin) continue;
      count += 1;
      if (session.personal !== undefined) {
        session.personal.receiveEvent(event);
        continue;
      }
      const lacked = session.lackedPart(event);
      if (lacked === undefined) continue;
      if (lacked !== event) session.push({ ...push, event: lacked });
      else session.pushShared(push, frames);
    }
  }
  return count;
}

/**
 * Pushes a changed conversation to the user's sessions that have their CONNACK, except `origin`.
 * Calls `shown` for each of these sessions.
 */
export function deliverConversation(
  { uid, conversation, change, origin }: ConversationEvent,
  sessionsOf: SessionsOf,
  shown: (session: Session) => void,
): void {
  const push = { kind: "conversation", change, conversation } as const;
  const frames = new SharedFrames();
  for (const session of sessionsOf(uid)) {
    if (!session.hasConnack || session.sessionId === origin) continue;
    session.pushShared(push, frames);
    shown(session);
  }
}

/**
 * Returns a push that its receivers share, so that the message is not encoded for each of them. All
 * receivers must see the channel under the same id.
 */
export function messagePush(message: Message): DeferredPush {
  const frames = new SharedFrames();
  return (session) => pushMessage(session, message, frames);
}

function pushMessage(session: Session, message: Message, frames: SharedFrames): void {
  const { format, acknowledges } = session.codec;
  if (session.rights !== undefined && !mayRead(session.rights, channelSeenBy(session.uid, message)))
    return;
  const shared = acknowledges ? undefined : frames.get(format);
  if (shared !== undefined) return session.pushFrames(shared);
  const channel = channelSeenBy(session.uid, message);
  const isOwn = acknowledges && session.uid === message.fromUid;
  const push = { kind: "message", channel, message, isOwn } as const;
  session.pushShared(push, frames, isOwn ? `${format} own` : format);
}
