// What goes to users' sessions and not to a group's: personal and restricted messages, events of
// personal channels, changes of conversations. Encoded once per wire format and view. State: none.

import { type ChannelEvent, channelSeenBy, GROUP_CHANNEL, type Message } from "../broker/model.ts";
import type { ClusterEvent } from "../broker/ports.ts";
import type { Frames } from "../protocol/protocol.ts";
import type { Session } from "./session.ts";

type ConversationEvent = Extract<ClusterEvent, { readonly kind: "conversation" }>;

/** The sessions of a user on this node. */
export type SessionsOf = (uid: string) => readonly Session[];

/** Both users of a personal channel, once each. */
export function pairOf({
  fromUid,
  channel,
}: Pick<Message, "fromUid" | "channel">): readonly string[] {
  return channel.id === fromUid ? [fromUid] : [fromUid, channel.id];
}

/** Takes the message to all sessions of these users but `origin`. Returns how many they are. */
export function deliverMessage(
  message: Message,
  to: {
    readonly uids: readonly string[];
    readonly origin: Session | undefined;
  },
  sessionsOf: SessionsOf,
): number {
  const isGroup = message.channel.type === GROUP_CHANNEL;
  let frames = new Map<string, Frames>();
  let count = 0;
  for (const uid of to.uids) {
    if (!isGroup) frames = new Map(); // each calls a conversation by the other's name
    for (const session of sessionsOf(uid)) {
      if (session === to.origin) continue;
      if (!isGroup && !session.lacks(message)) continue;
      if (message.messageSeq === 0 && !session.isWelcome) continue; // its user was shown it at another node, or was not online
      count += 1;
      if (session.personal?.isHolding) session.personal.takeMessage(message);
      else pushMessage(session, message, frames);
    }
  }
  return count;
}

/**
 * Takes an event of a personal channel to all sessions of both users. Returns how many they are.
 */
export function deliverEvent(event: ChannelEvent, sessionsOf: SessionsOf): number {
  let count = 0;
  for (const uid of pairOf(event)) {
    const sessions = sessionsOf(uid);
    if (sessions.length === 0) continue;
    count += sessions.length;
    const channel = channelSeenBy(uid, event);
    const push = { kind: "event", channel, event } as const;
    const frames = new Map<string, Frames>();
    for (const session of sessions) {
      if (session.personal !== undefined) {
        session.personal.takeEvent(event);
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
 * Tells the user's sessions but the one that did it, and `shown` of each that its client has the
 * newest message with its stream. One without its connack will read the conversation as it is then.
 */
export function deliverConversation(
  { uid, conversation, change, origin }: ConversationEvent,
  sessionsOf: SessionsOf,
  shown: (session: Session) => void,
): void {
  const push = { kind: "conversation", change, conversation } as const;
  const frames = new Map<string, Frames>();
  for (const session of sessionsOf(uid)) {
    if (!session.isWelcome || session.sessionId === origin) continue;
    session.pushShared(push, frames);
    shown(session);
  }
}

/** The message as the sessions of one view and format get it is encoded on first use. */
function pushMessage(session: Session, message: Message, frames: Map<string, Frames>): void {
  const { format, acknowledges } = session.codec;
  const found = acknowledges ? undefined : frames.get(format);
  if (found !== undefined) return session.pushFrames(found);
  const channel = channelSeenBy(session.uid, message);
  const push = { kind: "message", channel, message } as const;
  session.pushShared(push, frames);
}
