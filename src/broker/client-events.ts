// Events that clients send, such as typing or a cursor position. They are pushed to the channel's
// members who are online. They are not stored, have no seq, and are not sent to a client that
// resumes.

import { BrokerError } from "./errors.ts";
import { assertId } from "./ids.ts";
import {
  type ChannelRef,
  channelKey,
  EXPIRING_EVENT,
  isWellFormed,
  MAX_CLIENT_EVENT_BYTES,
  MAX_CLIENT_EVENT_TYPE,
  RESERVED_EVENT_PREFIX,
} from "./model.ts";
import type { SendTerms } from "./permissions.ts";
import type { ChannelStore, Clock, Publisher } from "./ports.ts";
import { createSendRule } from "./send-rule.ts";

interface ClientEventInput {
  readonly fromUid: string;
  readonly channel: ChannelRef;
  readonly type: string;
  readonly data: string;
  /** Session that sends the event and does not receive it. */
  readonly origin: string;
}

export interface ClientEvents {
  /**
   * Publishes an event. Resolves when the permission has been checked and the event has been passed
   * to the cluster. Events from one origin to one channel keep their order. Throws an
   * `EventRefusal` code, `event_type_empty`, `bad_id`, `bad_request`, `too_large` or `unavailable`.
   */
  emit(input: ClientEventInput): Promise<void>;
}

export function createClientEvents(
  ports: SendTerms & {
    readonly store: Pick<ChannelStore, "groupFacts" | "personFacts">;
    readonly publisher: Publisher;
    readonly clock: Clock;
    readonly nodeId: string;
  },
): ClientEvents {
  const { store, publisher, clock, nodeId } = ports;
  const rule = createSendRule(store, ports);
  let eventCount = 0;

  return {
    async emit({ fromUid, channel, type, data, origin }) {
      assertId(channel.id, "channelId");
      checkType(type);
      checkData(data);
      const key = channelKey(channel, fromUid);
      const decision = rule.eventRefusal(fromUid, channel, `${origin} ${key}`);
      const refusal = decision instanceof Promise ? await decision : decision;
      if (refusal !== undefined) throw new BrokerError(refusal);
      const timestampMs = clock();
      eventCount += 1;
      publisher.publish({
        kind: "event",
        event: {
          ...{ key, channel, fromUid, clientMsgNo: "", type, data, timestampMs },
          eventId: `c${timestampMs.toString(36)}-${eventCount.toString(36)}-${nodeId}`,
          stream: undefined,
        },
        origin,
      });
    },
  };
}

function checkType(type: string): void {
  if (type === "") throw new BrokerError("event_type_empty");
  if (type.length > MAX_CLIENT_EVENT_TYPE)
    throw invalid("type", `exceeds ${MAX_CLIENT_EVENT_TYPE} characters`);
  if (!isWellFormed(type)) throw invalid("type", "must be well-formed Unicode");
  if (type.startsWith(RESERVED_EVENT_PREFIX))
    throw invalid("type", `must not begin with ${RESERVED_EVENT_PREFIX}, which is reserved`);
  // Clients refresh their token when they receive this type of event, so only the server may send
  // it.
  if (type === EXPIRING_EVENT) throw invalid("type", `must not be ${EXPIRING_EVENT}`);
}

function checkData(data: string): void {
  if (!isWellFormed(data)) throw invalid("data", "must be well-formed Unicode");
  if (Buffer.byteLength(data) > MAX_CLIENT_EVENT_BYTES)
    throw new BrokerError("too_large", { message: `data exceeds ${MAX_CLIENT_EVENT_BYTES} bytes` });
}

function invalid(field: string, problem: string): BrokerError {
  return new BrokerError("bad_request", { message: `${field} ${problem}` });
}
