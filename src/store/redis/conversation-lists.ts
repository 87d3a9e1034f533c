// Lists of a user's conversations: all of them without content, some of them whole. One step per channel, so many of a list at once. How many
// lists at once is the caller's. State: none.

import {
  type ChannelRef,
  type Conversation,
  type ConversationHead,
  GROUP_CHANNEL,
  PERSON_CHANNEL,
} from "../../broker/model.ts";
import type { ConversationSlice } from "../../broker/ports.ts";
import { CONVERSATION_BYTES, contentBytes } from "../held-bytes.ts";
import type { ConversationPeers, Peer } from "./conversation-peers.ts";
import type { ConversationSteps } from "./conversation-steps.ts";

/** Steps of one list on their way at once: other calls of the node take turns with them. */
const STEPS_AT_ONCE = 64;
/** Whole conversations read at once, each with up to all that a message holds. */
const WHOLE_AT_ONCE = 16;

export interface ConversationListsParts {
  readonly steps: ConversationSteps;
  readonly peers: ConversationPeers;
  readonly groupsOf: (uid: string) => Promise<readonly string[]>;
  readonly onProblem: (error: unknown, what: string) => void;
}

export class ConversationLists {
  readonly #parts: ConversationListsParts;

  constructor(parts: ConversationListsParts) {
    this.#parts = parts;
  }

  /** The port's `conversationsOf`. */
  async heads(uid: string): Promise<readonly ConversationHead[]> {
    const { groupsOf, peers } = this.#parts;
    const [groups, people] = await Promise.all([groupsOf(uid), peers.of(uid)]);
    const found: ConversationHead[] = [];
    const look = async (channel: ChannelRef, peer?: Peer) => {
      const { head, isEmpty } = await this.#parts.steps.glance(uid, channel);
      if (head !== undefined) found.push(head);
      else if (isEmpty && peer !== undefined) await this.#drop(uid, peer);
    };
    const all = [
      ...groups.map((id) => () => look({ id, type: GROUP_CHANNEL })),
      ...people.map((peer) => () => look(channelWith(peer), peer)),
    ];
    await runSome(all, STEPS_AT_ONCE);
    return found;
  }

  /** The port's `readConversations`. */
  async read(
    uid: string,
    channels: readonly ChannelRef[],
    { limit, maxBytes }: { readonly limit: number; readonly maxBytes: number },
  ): Promise<ConversationSlice> {
    const conversations: Conversation[] = [];
    let bytes = 0;
    let at = 0;
    while (at < channels.length) {
      if (conversations.length >= limit) return { conversations, more: true };
      const count = Math.min(WHOLE_AT_ONCE, limit - conversations.length);
      const asked = channels.slice(at, at + count);
      at += count;
      for (const one of await this.#whole(uid, asked)) {
        if (one?.last === undefined) continue;
        bytes += CONVERSATION_BYTES + contentBytes(one.last);
        if (bytes > maxBytes && conversations.length > 0)
          return { conversations, more: true };
        conversations.push(one);
      }
    }
    return { conversations, more: false };
  }

  #whole(
    uid: string,
    channels: readonly ChannelRef[],
  ): Promise<readonly (Conversation | undefined)[]> {
    const { steps } = this.#parts;
    return Promise.all(channels.map((channel) => steps.whole(uid, channel)));
  }

  /** A list is none the worse for a peer too many. */
  async #drop(uid: string, peer: Peer): Promise<void> {
    const { steps, peers, onProblem } = this.#parts;
    const isEmpty = async () =>
      (await steps.glance(uid, channelWith(peer))).isEmpty;
    try {
      await peers.drop(uid, peer, isEmpty);
    } catch (error) {
      onProblem(
        error,
        "An empty conversation could not be taken out of a list",
      );
    }
  }
}

const channelWith = ({ uid }: Peer): ChannelRef => ({
  id: uid,
  type: PERSON_CHANNEL,
});

/** Runs all steps, so many at once. */
async function runSome(
  steps: readonly (() => Promise<void>)[],
  atOnce: number,
): Promise<void> {
  const left = steps.values();
  const runner = async () => {
    for (const step of left) await step();
  };
  await Promise.all(Array.from({ length: atOnce }, runner));
}
