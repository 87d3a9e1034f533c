// Checks the permission to send commands and events and to cancel streams, with facts read from the
// store. Plain messages are not checked here: the store applies `permissions.ts` in the step that
// appends them.

import { KeyedSequencer } from "../lib/keyed-sequencer.ts";
import type { MaybePromise } from "../lib/maybe-promise.ts";
import type { SendRefusal } from "./errors.ts";
import { type ChannelRef, GROUP_CHANNEL } from "./model.ts";
import { checkOf, refuseGroupSend, refusePersonSend, type SendTerms } from "./permissions.ts";
import type { ChannelStore } from "./ports.ts";

interface Sender {
  readonly fromUid: string;
  /** True if a backend sends in the name of the user. */
  readonly isBackend: boolean;
}

interface SendRule {
  /**
   * Returns why a send is refused, `undefined` if it is allowed. Calls of one queue resolve in the
   * order in which they were made. Calls without a queue have no order.
   */
  refusal(
    sender: Sender,
    channel: ChannelRef,
    queue: string | undefined,
  ): MaybePromise<SendRefusal | undefined>;
  /** Resolves with the result of `ready` after the earlier calls of the queue have settled. */
  inTurn<T>(queue: string | undefined, ready: Promise<T>): Promise<T>;
  /** Resolves after the earlier calls of the queue. Returns `undefined` if there are none. */
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
    if (channel.type === GROUP_CHANNEL) {
      const facts = store.groupFacts(channel.id, fromUid);
      return facts instanceof Promise
        ? facts.then((awaited) => refuseGroupSend(awaited, fromUid, check))
        : refuseGroupSend(facts, fromUid, check);
    }
    const facts = store.personFacts(fromUid, channel.id);
    return facts instanceof Promise
      ? facts.then((awaited) => refusePersonSend(awaited, fromUid, channel.id, check))
      : refusePersonSend(facts, fromUid, channel.id, check);
  }

  function inTurn<T>(queue: string | undefined, ready: Promise<T>): Promise<T> {
    return queue === undefined ? ready : queues.enter(queue, ready);
  }

  return {
    refusal(sender, channel, queue) {
      const refused = decide(sender, channel);
      if (!(refused instanceof Promise) && queues.isEmpty) return refused;
      return inTurn(queue, Promise.resolve(refused));
    },
    inTurn,
    turn(queue) {
      if (queue === undefined || !queues.isBusy(queue)) return undefined;
      return queues.enter(queue, Promise.resolve());
    },
  };
}
