// Computes the state of a conversation from the channel's head, the user's position, the newest
// message that the user sent, and the counts in the records (see `unread.ts`). All inputs of a
// state are read in one event-loop turn, which makes them consistent. `redis/lua/conversation.lua`
// computes the same state in Redis.

import {
  type ChannelKey,
  type ChannelRef,
  type Conversation,
  type ConversationHead,
  type MessageHead,
  messageTimeMs,
} from "../../../broker/model.ts";
import type { Clock, ConversationChange } from "../../../broker/ports.ts";
import { type Position, type PositionTable, readPosition } from "./conversation-rows.ts";
import type { History } from "./history.ts";
import {
  type ChannelState,
  ChannelStates,
  type ChannelStatesPorts,
  UnreadCounter,
} from "./unread.ts";

export interface ConversationRef {
  readonly uid: string;
  readonly channel: ChannelRef;
  readonly key: ChannelKey;
  readonly isLarge: boolean;
  /** Newest seq of the channel at the time the user joined, or 0 for a personal channel. */
  readonly joinSeq: number;
}

interface ConversationState {
  readonly channel: ChannelState;
  readonly position: Position | undefined;
  readonly readSeq: number;
  readonly deletedSeq: number;
}

type ReadMarks = Pick<ConversationState, "readSeq" | "deletedSeq">;

export interface ConversationStatePorts extends ChannelStatesPorts {
  readonly tables: PositionTable;
  readonly history: History;
  readonly imports: { importedSeq(key: ChannelKey): number };
  readonly clock: Clock;
  readonly retentionMs: number;
}

type ConversationFacts = Omit<Conversation, "last"> & {
  readonly last: MessageHead | undefined;
};

export class ConversationStates {
  readonly #ports: ConversationStatePorts;
  readonly #channels: ChannelStates;
  readonly #unread: UnreadCounter;

  constructor(ports: ConversationStatePorts) {
    this.#ports = ports;
    this.#channels = new ChannelStates(ports);
    this.#unread = new UnreadCounter({ ...ports, states: this.#channels });
  }

  view(ref: ConversationRef): Conversation {
    const facts = this.#facts(ref);
    if (facts.last === undefined) return { ...facts, last: undefined };
    const { messageSeq } = facts.last;
    // If this message cannot be decoded, the newest message before it is shown.
    const { messages } = this.#ports.history.read(ref.key, {
      ...{ fromSeq: facts.deletedSeq + 1, toSeq: messageSeq, limit: 1, reverse: true },
      maxBytes: Number.MAX_SAFE_INTEGER,
    });
    return { ...facts, last: messages[0] };
  }

  head(ref: ConversationRef): ConversationHead | undefined {
    const { last, ...facts } = this.#facts(ref);
    return last && { ...facts, last };
  }

  #facts(ref: ConversationRef): ConversationFacts {
    const state = this.stateOf(ref);
    const { channel, position, readSeq, deletedSeq } = state;
    const last = this.#last(state);
    return {
      channel: ref.channel,
      headSeq: channel.head,
      readSeq,
      unread: ref.isLarge ? 0 : this.#unread.count(channel, readSeq),
      deletedSeq,
      changedAtMs: Math.max(last ? messageTimeMs(last.messageId) : 0, position?.changedAtMs ?? 0),
      last,
      ...(ref.isLarge && { large: true }),
    };
  }

  stateOf({ uid, key, isLarge, joinSeq }: ConversationRef): ConversationState {
    const channel = this.#channels.stateOf(key);
    const { head } = channel;
    if (isLarge) return { channel, position: undefined, readSeq: head, deletedSeq: 0 };
    const position = readPosition(this.#ports.tables, uid, key);
    const own = this.#channels.ownSeq(channel, uid);
    if (position === undefined) {
      const importedSeq = this.#ports.imports.importedSeq(key);
      const readSeq = Math.min(head, Math.max(joinSeq, own, importedSeq));
      return { channel, position, readSeq, deletedSeq: 0 };
    }
    const { deletedSeq, headAtChange } = position;
    const ownSince = own > headAtChange ? own : 0;
    const readSeq = Math.max(position.readSeq, ownSince, deletedSeq);
    return { channel, position, readSeq, deletedSeq };
  }

  #last({ channel, deletedSeq }: ConversationState): MessageHead | undefined {
    const { clock, retentionMs } = this.#ports;
    const fromSeq = this.#unread.firstKeptSeq(channel, deletedSeq + 1);
    if (fromSeq > channel.head) return undefined;
    const nowMs = clock();
    return this.#channels.newestVisible(
      channel,
      fromSeq,
      ({ acceptedMs, expiresAtMs }) => nowMs < expiresAtMs && nowMs < acceptedMs + retentionMs,
    );
  }

  afterChange(state: ConversationState, change: ConversationChange): ReadMarks {
    const { channel, deletedSeq } = state;
    const { head } = channel;
    switch (change.kind) {
      case "read": {
        const seq = Math.min(head, Math.trunc(change.seq));
        return { readSeq: Math.max(seq, deletedSeq, 0), deletedSeq };
      }
      case "unread": {
        const unread = Math.max(0, Math.trunc(change.unread));
        const readSeq = this.#unread.positionOf(channel, unread, deletedSeq);
        return { readSeq, deletedSeq };
      }
      case "delete": {
        const seq = Math.min(head, Math.trunc(change.seq ?? head));
        return { readSeq: Math.max(state.readSeq, seq), deletedSeq: Math.max(deletedSeq, seq) };
      }
    }
  }
}
