// Checks, with facts from the store, whether a user may send commands, send client events or cancel
// streams. For plain messages and stream events, the store applies `permissions.ts` in the step
// that appends them. Plain messages are also checked here before a send hook is called.

import { KeyedSequencer } from "../lib/keyed-sequencer.ts";
import { andThen, type MaybePromise } from "../lib/maybe-promise.ts";
import type { SendRefusal } from "./errors.ts";
import { type ChannelRef, GROUP_CHANNEL } from "./model.ts";
import {
  checkOf,
  type EventRefusal,
  refuseClientEvent,
  refuseGroupSend,
  refusePersonSend,
  type SendTerms,
} from "./permissions.ts";
import type { ChannelStore } from "./ports.ts";

interface Sender {
  readonly fromUid: string;
  /** True if a backend sends on behalf of the user. */
  readonly isBackend: boolean;
}

interface SendRule {
  /**
   * Returns the reason why a send is refused, or `undefined` if it is allowed. Calls in one queue
   * resolve in the order in which they were made. The order of calls without a queue is undefined.
   */
  refusal(
    sender: Sender,
    channel: ChannelRef,
    queue: string | undefined,
  ): MaybePromise<SendRefusal | undefined>;
  eventRefusal(
    fromUid: string,
    channel: ChannelRef,
    queue: string | undefined,
  ): MaybePromise<EventRefusal | undefined>;
  /** Resolves with the result of `ready` after the earlier calls in the queue have settled. */
  inTurn<T>(queue: string | undefined, ready: Promise<T>): Promise<T>;
  /**
   * Resolves after the earlier calls in the queue have settled. Returns `undefined` if no earlier
   * call is pending.
   */
  turn(queue: string | undefined): Promise<void> | undefined;
}

export function createSendRule(
  store: Pick<ChannelStore, "groupFacts" | "personFacts">,
  terms: SendTerms,
): SendRule {
  const queues = new KeyedSequencer();

  function decide(
    { fromUid, isBackend }: Sender,
    channel: ChannelRef,
  ): MaybePromise<SendRefusal | undefined> {
    const check = checkOf(fromUid, channel, terms, isBackend);
    return channel.type === GROUP_CHANNEL
      ? andThen(store.groupFacts(channel.id, fromUid), (facts) =>
          refuseGroupSend(facts, fromUid, check),
        )
      : andThen(store.personFacts(fromUid, channel.id), (facts) =>
          refusePersonSend(facts, fromUid, channel.id, check),
        );
  }

  function decideEvent(
    fromUid: string,
    channel: ChannelRef,
  ): MaybePromise<EventRefusal | undefined> {
    const check = checkOf(fromUid, channel, terms, false);
    return channel.type === GROUP_CHANNEL
      ? andThen(
          store.groupFacts(channel.id, fromUid),
          (facts) => refuseGroupSend(facts, fromUid, check) ?? refuseClientEvent(facts.info),
        )
      : andThen(
          store.personFacts(fromUid, channel.id),
          (facts) =>
            refusePersonSend(facts, fromUid, channel.id, check) ??
            refuseClientEvent(facts.receiver),
        );
  }

  function inOrder<T>(queue: string | undefined, decision: MaybePromise<T>): MaybePromise<T> {
    if (!(decision instanceof Promise) && queues.isEmpty) return decision;
    return inTurn(queue, Promise.resolve(decision));
  }

  function inTurn<T>(queue: string | undefined, ready: Promise<T>): Promise<T> {
    return queue === undefined ? ready : queues.enter(queue, ready);
  }

  return {
    refusal: (sender, channel, queue) => inOrder(queue, decide(sender, channel)),
    eventRefusal: (fromUid, channel, queue) => inOrder(queue, decideEvent(fromUid, channel)),
    inTurn,
    turn(queue) {
      if (queue === undefined || !queues.isBusy(queue)) return undefined;
      return queues.enter(queue, Promise.resolve());
    },
  };
}
