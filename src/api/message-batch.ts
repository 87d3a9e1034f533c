// One personal message to each of many users: /message/sendbatch. State: none.

import { type Static, Type } from "typebox";
import { BrokerError, type ErrorCode } from "../broker/errors.ts";
import type { Messages, SendInput } from "../broker/messages.ts";
import { PERSON_CHANNEL } from "../broker/model.ts";
import { id } from "./fields.ts";
import { decodeBase64, header, notBase64, toHeader } from "./messages.ts";
import { jsonReply } from "./reply.ts";
import type { Outcome } from "./route.ts";

/** Messages under way. */
const SENT_AT_ONCE = 200;
/** They say the same of every user, and before anything is sent. */
const OF_ALL: ReadonlySet<ErrorCode> = new Set(["bad_payload", "too_large", "bad_request"]);

export const sendBatchBody = (maxSubscribers: number) =>
  Type.Object(
    {
      payload: Type.String({
        minLength: 1,
        contentEncoding: "base64",
        description: "Standard base64 of the JSON content",
      }),
      from_uid: id("Sender"),
      subscribers: Type.Array(id("user id"), {
        minItems: 1,
        maxItems: maxSubscribers,
        description: "Users who get it, each in a personal message",
      }),
      header: Type.Optional(header),
    },
    {
      title: "SendBatchRequest",
      examples: [
        {
          from_uid: "bob",
          subscribers: ["alice", "carol"],
          payload: "eyJ0eXBlIjoxLCJjb250ZW50IjoiaGVsbG8ifQ==",
        },
      ],
    },
  );

/** The users that it was not sent to, each with the reason. */
interface Failures {
  readonly fail_uids: string[];
  readonly reason: string[];
}

type Body = Static<ReturnType<typeof sendBatchBody>>;

export function createSendBatch(messages: Pick<Messages, "send">): (body: Body) => Outcome {
  return (body) => {
    const payload = decodeBase64(body.payload);
    if (payload === undefined) return notBase64();
    return sendToEach(messages, body.subscribers, {
      fromUid: body.from_uid,
      clientMsgNo: undefined,
      header: toHeader(body.header),
      expireS: 0,
      streamNo: undefined,
      tagKey: undefined,
      payload,
      subscribers: undefined,
      origin: undefined,
    }).then((failures) => jsonReply(JSON.stringify(failures)));
  };
}

/** Throws what concerns the message itself; a refusal of one user does not stop the others. */
async function sendToEach(
  messages: Pick<Messages, "send">,
  uids: readonly string[],
  message: Omit<SendInput, "channel">,
): Promise<Failures> {
  const failures: Failures = { fail_uids: [], reason: [] };
  const all = [...new Set(uids)];
  for (let at = 0; at < all.length; at += SENT_AT_ONCE) {
    const some = all.slice(at, at + SENT_AT_ONCE);
    const sent = await Promise.allSettled(
      some.map((uid) =>
        messages.send({
          ...message,
          channel: { id: uid, type: PERSON_CHANNEL },
        }),
      ),
    );
    for (const [place, result] of sent.entries()) {
      if (result.status === "fulfilled") continue;
      const { reason: error } = result;
      if (!(error instanceof BrokerError) || OF_ALL.has(error.code)) throw error;
      failures.fail_uids.push(some[place] ?? "");
      failures.reason.push(error.message);
    }
  }
  return failures;
}
