// The steps in Lua that read or change where one user stands in one channel, and what their replies say. No state. Nothing is awaited before a
// step is issued: calls for one channel take effect in their order.

import {
  type ChannelRef,
  type Conversation,
  type ConversationHead,
  channelKey,
  GROUP_CHANNEL,
  type Message,
  type MessageHead,
  streamPayload,
} from "../../../broker/model.ts";
import type { ConversationChange } from "../../../broker/ports.ts";
import { type Arg, loadScript, type Script } from "../../../redis/script.ts";
import { decodeRecord } from "../../../redis/wire.ts";
import type { RedisStoreParts } from "../parts.ts";
import { decodeSnapshot } from "./streams/record.ts";

const lua = (name: string) => new URL(`../lua/${name}.lua`, import.meta.url);
const STANDING = [
  ...[lua("channel_record"), lua("entry"), lua("snapshot")],
  lua("standing"),
];
const READ = loadScript(lua("conversation"), ...STANDING);
const CHANGE = loadScript(lua("change_conversation"), ...STANDING);

/** What `ConversationSteps` runs. */
export const stepScripts: readonly Script[] = [READ, CHANGE];

/** A conversation as a list needs it. */
export interface Glance {
  /** Undefined: it has no message to show, or the user is no member. */
  readonly head: ConversationHead | undefined;
  /** The channel has no message any more, for nobody. */
  readonly isEmpty: boolean;
}

const NOTHING: Glance = { head: undefined, isEmpty: false };

/** The places in a reply of the head, how much the log has, and of where to look on. */
const HEAD = 0;
const LOGGED = 5;
const LOOK_ON = 6;
/** Behind these of a reply comes what tells of the newest message. */
const FACTS = 7;

export class ConversationSteps {
  readonly #parts: RedisStoreParts;

  constructor(parts: RedisStoreParts) {
    this.#parts = parts;
  }

  /** Without reading what the message holds. Throws as every call of the link. */
  async glance(uid: string, channel: ChannelRef): Promise<Glance> {
    const found = await this.#run(READ, { uid, channel, wants: "head" });
    if (found === undefined) return NOTHING;
    const { reply } = found;
    const last = lastHead(reply.slice(FACTS));
    const head = last && { ...factsOf(channel, reply), last };
    return { head, isEmpty: reply[LOGGED] === 0 };
  }

  /** Undefined: a group the user is no member of. */
  async whole(
    uid: string,
    channel: ChannelRef,
  ): Promise<Conversation | undefined> {
    const found = await this.#run(READ, { uid, channel, wants: "whole" });
    return found && wholeOf(channel, found);
  }

  /** Applies the change and returns how it stands then, when that is durable. Undefined as above. */
  async change(
    uid: string,
    channel: ChannelRef,
    change: ConversationChange,
  ): Promise<Conversation | undefined> {
    const asked = { uid, channel, wants: "whole", change } as const;
    const found = await this.#run(CHANGE, asked);
    return found && wholeOf(channel, found);
  }

  async #run(script: Script, asked: Asked): Promise<Found | undefined> {
    const { link, written } = this.#parts;
    const { uid, channel, change } = asked;
    const key = channelKey(channel, uid);
    const parts = channel.type === GROUP_CHANNEL ? GROUP_PARTS : PERSON_PARTS;
    const keys = parts.map((part) => link.keys.channel(part, key));
    const more = change === undefined ? [] : [change.kind, amountOf(change)];
    let reply = await this.#step(script, keys, [...this.#args(asked), ...more]);
    let last: Message | undefined;
    while (reply !== null) {
      last = this.#lastMessage(asked, reply);
      const through = lookOnFrom(asked, reply, last);
      if (through === 0) break;
      const args = [...this.#args(asked), Number(reply[HEAD]), through];
      reply = await this.#step(READ, keys, args);
    }
    if (reply === null) return undefined;
    if (change !== undefined) await written(keys[0]);
    return { reply, last };
  }

  /** Undefined: the reply has none, or one that cannot be read. */
  #lastMessage({ wants }: Asked, reply: Reply): Message | undefined {
    const facts = reply.slice(FACTS);
    if (wants === "head" || facts.length === 0) return undefined;
    return this.#parts.unreadable.leaveOut([facts], lastMessage)[0];
  }

  /** What every step is given. */
  #args({ uid, channel, wants }: Asked): readonly Arg[] {
    const { clock, limits } = this.#parts;
    const retentionMs = limits.retentionS * 1000;
    return [uid, clock(), retentionMs, channel.type, wants === "whole" ? 1 : 0];
  }

  async #step(
    script: Script,
    keys: readonly string[],
    args: readonly Arg[],
  ): Promise<Reply | null> {
    return (await this.#parts.link.run(script, keys, args)) as Reply | null; // as the steps' headers say
  }
}

/** The keys of every step, in their order. */
const PERSON_PARTS = ["head", "log", "dot", "pos"];
const GROUP_PARTS = [...PERSON_PARTS, "join", "perm", "temp"];

interface Asked {
  readonly uid: string;
  readonly channel: ChannelRef;
  readonly wants: "head" | "whole";
  readonly change?: ConversationChange;
}

/** What the steps found, and the message they showed. */
interface Found {
  readonly reply: Reply;
  readonly last: Message | undefined;
}

type Reply = readonly (number | Buffer | readonly unknown[] | null)[];

/** The number of a change as the step reads it: an integer from 0 on. */
function amountOf(change: ConversationChange): number {
  if (change.kind === "delete") return 0;
  const value = change.kind === "read" ? change.seq : change.unread;
  return Math.min(Math.max(Math.trunc(value), 0), Number.MAX_SAFE_INTEGER);
}

function factsOf(
  { id, type }: ChannelRef,
  reply: Reply,
): Omit<Conversation, "last"> {
  const [headSeq, readSeq, unread, deletedSeq, changedAtMs] = reply.map(Number);
  return {
    channel: { id, type },
    headSeq: headSeq ?? 0,
    readSeq: readSeq ?? 0,
    unread: unread ?? 0,
    deletedSeq: deletedSeq ?? 0,
    changedAtMs: changedAtMs ?? 0,
  };
}

function wholeOf(channel: ChannelRef, { reply, last }: Found): Conversation {
  return { ...factsOf(channel, reply), last };
}

/** The seq through which a further step looks for the newest message; 0: none is needed. */
function lookOnFrom(
  { wants }: Asked,
  reply: Reply,
  last: Message | undefined,
): number {
  const [, messageSeq] = reply.slice(FACTS);
  const isUnreadable =
    wants === "whole" && messageSeq !== undefined && last === undefined;
  return isUnreadable ? Number(messageSeq) - 1 : Number(reply[LOOK_ON]);
}

function lastHead(last: Reply): MessageHead | undefined {
  if (last.length === 0) return undefined;
  const [messageId, messageSeq, clientMsgNo, timestampMs] = last;
  return {
    messageId: Number(messageId),
    messageSeq: Number(messageSeq),
    clientMsgNo: String(clientMsgNo),
    timestampMs: Number(timestampMs),
  };
}

function lastMessage(last: Reply): Message {
  const [messageId, messageSeq, record, shown] = last;
  const stream = shown === null ? undefined : decodeSnapshot(shown);
  return decodeRecord(record as Buffer, {
    messageId: Number(messageId),
    messageSeq: Number(messageSeq),
    ...(stream && { stream, payload: streamPayload(stream.text) }),
  });
}
