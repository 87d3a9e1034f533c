// When a call that changes streams may be issued: at once, in the order of the calls, but on a Redis Cluster not before the users of a personal channel
// have the hint of a stream that begins. State: the lanes of calls that wait for that.

import type { ChannelKey } from "../../../../broker/model.ts";
import { KeyedSequencer } from "../../../../lib/keyed-sequencer.ts";
import type { RedisLink } from "../../../../redis/link.ts";
import type { RedisStoreParts } from "../../parts.ts";
import { areUsersApart } from "../channel-names.ts";
import { addHints } from "./hints.ts";

export class StreamTurns {
  readonly #link: RedisLink;
  readonly #clock: () => number;
  readonly #lanes = new KeyedSequencer();

  constructor({ link, clock }: Pick<RedisStoreParts, "link" | "clock">) {
    this.#link = link;
    this.#clock = clock;
  }

  /** Undefined: now. Else the call is issued synchronously behind the await. Throws as the link does; then it is not to be issued. */
  of(key: ChannelKey, isStart: boolean): Promise<void> | undefined {
    if (!areUsersApart(this.#link, key)) return undefined;
    const ready = isStart ? this.#addHints(key) : Promise.resolve();
    return this.#lanes.enter(key, ready);
  }

  /** To be awaited behind a start: a reader may have taken the hint out just before it. Undefined: nothing to wait for. */
  begun(key: ChannelKey): Promise<void> | undefined {
    if (!areUsersApart(this.#link, key)) return undefined;
    return this.#addHints(key);
  }

  #addHints(key: ChannelKey): Promise<void> {
    return addHints(this.#link, key, this.#clock());
  }
}
