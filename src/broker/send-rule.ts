// Permission to send, by the store's facts, for commands, events and stop buttons; plain messages
// are judged in the store, also by `permissions.ts`. State: sequencers of the calls whose facts are
// being read.

import { KeyedSequencer } from "../lib/keyed-sequencer.ts";
import type { MaybePromise } from "../lib/maybe-promise.ts";
import type { SendRefusal } from "./errors.ts";
import { type ChannelRef, GROUP_CHANNEL } from "./model.ts";
import { checkOf, refuseGroupSend, refusePersonSend, type SendTerms } from "./permissions.ts";
import type { ChannelStore } from "./ports.ts";

interface SendRule {
  /**
   * The reason why `fromUid` may not send into `channel`, or undefined; synchronous if the store
   * has the facts in memory and no call waits. Results of one lane come in the order of its calls.
   * `lane` undefined: no order.
   */
  refusal(
    fromUid: string,
    channel: ChannelRef,
    lane: string | undefined,
  ): MaybePromise<SendRefusal | undefined>;
  /** `ready`, in the lane's turn. */
  inTurn<T>(lane: string | undefined, ready: Promise<T>): Promise<T>;
  /** Resolves in the lane's turn; undefined: no call of the lane waits. */
  turn(lane: string | undefined): Promise<void> | undefined;
}

export function createSendRule(
  store: Pick<ChannelStore, "groupFacts" | "personFacts">,
  terms: SendTerms,
): SendRule {
  const lanes = new KeyedSequencer();

  function decide(fromUid: string, channel: ChannelRef): MaybePromise<SendRefusal | undefined> {
    const check = checkOf(fromUid, channel, terms);
    if (channel.type === GROUP_CHANNEL) {
      const facts = store.groupFacts(channel.id, fromUid);
      return facts instanceof Promise
        ? facts.then((known) => refuseGroupSend(known, fromUid, check))
        : refuseGroupSend(facts, fromUid, check);
    }
    const facts = store.personFacts(fromUid, channel.id);
    return facts instanceof Promise
      ? facts.then((known) => refusePersonSend(known, fromUid, channel.id, check))
      : refusePersonSend(facts, fromUid, channel.id, check);
  }

  function inTurn<T>(lane: string | undefined, ready: Promise<T>): Promise<T> {
    return lane === undefined ? ready : lanes.enter(lane, ready);
  }

  return {
    refusal(fromUid, channel, lane) {
      const refused = decide(fromUid, channel);
      if (!(refused instanceof Promise) && lanes.isEmpty) return refused;
      return inTurn(lane, Promise.resolve(refused));
    },
    inTurn,
    turn(lane) {
      if (lane === undefined || !lanes.isBusy(lane)) return undefined;
      return lanes.enter(lane, Promise.resolve());
    },
  };
}
