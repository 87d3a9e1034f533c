// Where users stand in their channels: computed when asked, from the channel's head, the user's position, the newest own message and the counts
// that records carry. No state but the parts'. Everything is read at once, so that it belongs together.

import type {
  Conversation,
  ConversationHead,
  MessageHead,
} from "../../../broker/model.ts";
import type { Clock, ConversationChange } from "../../../broker/ports.ts";
import type { ChannelState, ChannelStates } from "./channel-state.ts";
import type { History } from "./history.ts";
import type { Membership } from "./memberships.ts";
import {
  type Position,
  type PositionTable,
  readPosition,
} from "./positions.ts";
import type { Unread } from "./unread.ts";

/** Where a user stands in a channel at one moment. */
interface Standing {
  readonly state: ChannelState;
  readonly position: Position | undefined;
  readonly readSeq: number;
  readonly deletedSeq: number;
}

/** What a user can set. */
type Marks = Pick<Standing, "readSeq" | "deletedSeq">;

export interface StandingParts {
  readonly tables: PositionTable;
  readonly states: ChannelStates;
  readonly unread: Unread;
  readonly history: History;
  readonly clock: Clock;
  /** 0 = for ever. */
  readonly retentionMs: number;
}

type Facts = Omit<Conversation, "last"> & {
  readonly last: MessageHead | undefined;
};

export class Standings {
  readonly #parts: StandingParts;

  constructor(parts: StandingParts) {
    this.#parts = parts;
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
    const standing = this.of(membership);
    const { state, position, readSeq, deletedSeq } = standing;
    const last = this.#last(standing);
    return {
      channel: membership.channel,
      headSeq: state.head,
      readSeq,
      unread: membership.isLarge ? 0 : this.#parts.unread.count(state, readSeq),
      deletedSeq,
      changedAtMs: Math.max(last?.timestampMs ?? 0, position?.changedAtMs ?? 0),
      last,
    };
  }

  of(membership: Membership): Standing {
    const { tables, states } = this.#parts;
    const { uid, key, isLarge, joinSeq } = membership;
    const state = states.now(key);
    const { head } = state;
    if (isLarge)
      return { state, position: undefined, readSeq: head, deletedSeq: 0 };
    const position = readPosition(tables, uid, key);
    const own = states.ownSeq(state, uid);
    if (position === undefined) {
      const readSeq = Math.min(head, Math.max(joinSeq, own));
      return { state, position, readSeq, deletedSeq: 0 };
    }
    const { deletedSeq, headAtChange } = position;
    const ownSince = own > headAtChange ? own : 0;
    const readSeq = Math.max(position.readSeq, ownSince, deletedSeq);
    return { state, position, readSeq, deletedSeq };
  }

  /** The newest message behind `deletedSeq` that is shown. */
  #last({ state, deletedSeq }: Standing): MessageHead | undefined {
    const { states, unread, clock, retentionMs } = this.#parts;
    const fromSeq = unread.firstKeptSeq(state, deletedSeq + 1);
    if (fromSeq > state.head) return undefined;
    const nowMs = clock();
    return states.newest(
      state,
      fromSeq,
      ({ timestampMs, expiresAtMs }) =>
        nowMs < expiresAtMs &&
        (retentionMs === 0 || nowMs < timestampMs + retentionMs),
    );
  }

  /** What `change` makes of it. */
  changed({ state, deletedSeq }: Standing, change: ConversationChange): Marks {
    const { unread } = this.#parts;
    const { head } = state;
    switch (change.kind) {
      case "read": {
        const seq = Math.min(head, Math.trunc(change.seq));
        return { readSeq: Math.max(seq, deletedSeq, 0), deletedSeq };
      }
      case "unread": {
        const wanted = Math.max(0, Math.trunc(change.unread));
        const readSeq = unread.positionOf(state, wanted, deletedSeq);
        return { readSeq, deletedSeq };
      }
      case "delete":
        return { readSeq: head, deletedSeq: head };
    }
  }
}
