// The state of a user in a channel: computed when asked, from the channel's head, the user's
// position, the newest own message and the counts that records carry. No state but the tables'.
// Everything is read at once, so that it belongs together. `redis/lua/conversation.lua` is the
// twin.

import type {
  ChannelKey,
  ChannelRef,
  Conversation,
  ConversationHead,
  MessageHead,
} from "../../../broker/model.ts";
import type { Clock, ConversationChange } from "../../../broker/ports.ts";
import { type Position, type PositionTable, readPosition } from "./conversation-rows.ts";
import type { History } from "./history.ts";
import { type ChannelState, ChannelStates, type ChannelStatesParts, Unread } from "./unread.ts";

/** A channel that is a conversation of a user. */
export interface Membership {
  readonly uid: string;
  readonly channel: ChannelRef;
  readonly key: ChannelKey;
  readonly isLarge: boolean;
  /** The channel's head when the user joined it. */
  readonly joinSeq: number;
}

/** The state of a user in a channel at one moment. */
interface ConversationState {
  readonly channel: ChannelState;
  readonly position: Position | undefined;
  readonly readSeq: number;
  readonly deletedSeq: number;
}

/** What a user can set. */
type Marks = Pick<ConversationState, "readSeq" | "deletedSeq">;

export interface ConversationStateParts extends ChannelStatesParts {
  readonly tables: PositionTable;
  readonly history: History;
  readonly clock: Clock;
  /** Infinity: for ever. */
  readonly retentionMs: number;
}

type Facts = Omit<Conversation, "last"> & {
  readonly last: MessageHead | undefined;
};

export class ConversationStates {
  readonly #parts: ConversationStateParts;
  readonly #channels: ChannelStates;
  readonly #unread: Unread;

  constructor(parts: ConversationStateParts) {
    this.#parts = parts;
    this.#channels = new ChannelStates(parts);
    this.#unread = new Unread({ ...parts, states: this.#channels });
  }

  /** All of a conversation. */
  view(membership: Membership): Conversation {
    const facts = this.#facts(membership);
    if (facts.last === undefined) return { ...facts, last: undefined };
    const { messageSeq } = facts.last;
    const { messages } = this.#parts.history.read(membership.key, {
      ...{ fromSeq: messageSeq, toSeq: messageSeq, limit: 1, reverse: false },
      maxBytes: Number.MAX_SAFE_INTEGER,
    });
    return { ...facts, last: messages[0] };
  }

  /** A conversation without reading what its message holds; undefined: it has none to show. */
  head(membership: Membership): ConversationHead | undefined {
    const { last, ...facts } = this.#facts(membership);
    return last && { ...facts, last };
  }

  #facts(membership: Membership): Facts {
    const state = this.of(membership);
    const { channel, position, readSeq, deletedSeq } = state;
    const last = this.#last(state);
    return {
      channel: membership.channel,
      headSeq: channel.head,
      readSeq,
      unread: membership.isLarge ? 0 : this.#unread.count(channel, readSeq),
      deletedSeq,
      changedAtMs: Math.max(last?.timestampMs ?? 0, position?.changedAtMs ?? 0),
      last,
    };
  }

  of({ uid, key, isLarge, joinSeq }: Membership): ConversationState {
    const channel = this.#channels.now(key);
    const { head } = channel;
    if (isLarge) return { channel, position: undefined, readSeq: head, deletedSeq: 0 };
    const position = readPosition(this.#parts.tables, uid, key);
    const own = this.#channels.ownSeq(channel, uid);
    if (position === undefined) {
      const readSeq = Math.min(head, Math.max(joinSeq, own));
      return { channel, position, readSeq, deletedSeq: 0 };
    }
    const { deletedSeq, headAtChange } = position;
    const ownSince = own > headAtChange ? own : 0;
    const readSeq = Math.max(position.readSeq, ownSince, deletedSeq);
    return { channel, position, readSeq, deletedSeq };
  }

  /** The newest message behind `deletedSeq` that is shown. */
  #last({ channel, deletedSeq }: ConversationState): MessageHead | undefined {
    const { clock, retentionMs } = this.#parts;
    const fromSeq = this.#unread.firstKeptSeq(channel, deletedSeq + 1);
    if (fromSeq > channel.head) return undefined;
    const nowMs = clock();
    return this.#channels.newest(
      channel,
      fromSeq,
      ({ timestampMs, expiresAtMs }) => nowMs < expiresAtMs && nowMs < timestampMs + retentionMs,
    );
  }

  /** What `change` makes of it. */
  changed({ channel, deletedSeq }: ConversationState, change: ConversationChange): Marks {
    const { head } = channel;
    switch (change.kind) {
      case "read": {
        const seq = Math.min(head, Math.trunc(change.seq));
        return { readSeq: Math.max(seq, deletedSeq, 0), deletedSeq };
      }
      case "unread": {
        const wanted = Math.max(0, Math.trunc(change.unread));
        const readSeq = this.#unread.positionOf(channel, wanted, deletedSeq);
        return { readSeq, deletedSeq };
      }
      case "delete":
        return { readSeq: head, deletedSeq: head };
    }
  }
}
