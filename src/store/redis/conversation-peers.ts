// With whom a user has personal channels: the user's `peers`, kept by whoever stores a message. It is a hint that may name too many, never too
// few: a peer leaves it when nothing is left of the channel, and comes back if a message came meanwhile. No state.

import {
  type ChannelKey,
  channelKey,
  PERSON_CHANNEL,
} from "../../broker/model.ts";
import { loadScript, type Script } from "../../redis/script.ts";
import type { RedisStoreParts } from "./parts.ts";

const DROP = loadScript(new URL("./lua/drop_peer.lua", import.meta.url));

/** What `ConversationPeers` runs. */
export const peerScripts: readonly Script[] = [DROP];

export interface Peer {
  readonly uid: string;
  /** About when the newest message came, Unix milliseconds, as Redis writes it. */
  readonly score: string;
}

export class ConversationPeers {
  readonly #parts: Pick<RedisStoreParts, "link">;

  constructor(parts: Pick<RedisStoreParts, "link">) {
    this.#parts = parts;
  }

  /** All of them; one may have nothing to show any more. */
  async of(uid: string): Promise<readonly Peer[]> {
    const found = await this.#range(uid, ["0", "-1", "WITHSCORES"]);
    const peers: Peer[] = [];
    for (let at = 0; at + 1 < found.length; at += 2)
      peers.push({ uid: String(found[at]), score: String(found[at + 1]) });
    return peers;
  }

  /** Personal channels of `uid` with a message at or after about that time, Unix milliseconds. */
  async channelsSince(
    uid: string,
    sinceMs: number,
  ): Promise<readonly ChannelKey[]> {
    const found = await this.#range(uid, [`${sinceMs}`, "+inf", "BYSCORE"]);
    return found.map((peer) =>
      channelKey({ id: String(peer), type: PERSON_CHANNEL }, uid),
    );
  }

  /**
   * Takes out a peer whose channel was found empty, unless a message came since `peer` was read; `isEmpty` looks again afterwards, for a clock
   * that is behind may have written the same time.
   */
  async drop(
    uid: string,
    peer: Peer,
    isEmpty: () => Promise<boolean>,
  ): Promise<void> {
    const { link } = this.#parts;
    const key = link.keys.user("peers", uid);
    const taken = await link.run(DROP, [key], [peer.uid, peer.score]);
    if (taken === 0 || (await isEmpty())) return;
    await link.call("zadd", key, "GT", peer.score, peer.uid);
  }

  async #range(
    uid: string,
    range: readonly string[],
  ): Promise<readonly Buffer[]> {
    const { link } = this.#parts;
    const key = link.keys.user("peers", uid);
    return (await link.call("zrange", key, ...range)) as readonly Buffer[]; // members, as Buffers like every reply
  }
}
