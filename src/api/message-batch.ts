// The call /message/sendbatch, which sends one personal message to each of many users.

import { createHash } from "node:crypto";
import { type Static, Type } from "typebox";
import { BrokerError, ERRORS, type ErrorCode } from "../broker/errors.ts";
import { assertId } from "../broker/ids.ts";
import type { Messages, SendInput } from "../broker/messages.ts";
import { PERSON_CHANNEL } from "../broker/model.ts";
import { id, OPTIONAL_LABEL_PATTERN } from "./fields.ts";
import { decodeBase64, header, notBase64, toHeader } from "./messages.ts";
import { jsonReply } from "./reply.ts";
import type { Outcome } from "./route.ts";

const MAX_CONCURRENT_SENDS = 200;
/** Errors that are the same for all users and occur before anything is sent. */
const MESSAGE_ERRORS: ReadonlySet<ErrorCode> = new Set(["bad_payload", "too_large", "bad_request"]);

export const batchUids = (maxSubscribers: number) =>
  Type.Array(Type.String(), {
    minItems: 1,
    maxItems: maxSubscribers,
    description:
      "Users who receive the message, each as a personal message. An invalid uid is returned in fail_uids",
  });

export const sendBatchBody = (maxSubscribers: number) =>
  Type.Object(
    {
      payload: Type.String({
        minLength: 1,
        contentEncoding: "base64",
        description: "Standard base64 of the JSON content",
      }),
      from_uid: id("Sender"),
      subscribers: batchUids(maxSubscribers),
      header: Type.Optional(header),
      client_msg_no: Type.Optional(
        Type.String({
          pattern: OPTIONAL_LABEL_PATTERN,
          description:
            "Identifies the call for deduplication: a retry must have the same payload, and sends the message only to users to whom it has not been sent yet. Each message has a client_msg_no that is derived from this value and the uid of the recipient. If empty or absent, a retry sends all messages again",
        }),
      ),
    },
    {
      title: "SendBatchRequest",
      description: "Message to send, and its recipients",
      examples: [
        {
          from_uid: "bob",
          subscribers: ["alice", "carol"],
          payload: "eyJ0eXBlIjoxLCJjb250ZW50IjoiaGVsbG8ifQ==",
        },
      ],
    },
  );

interface Failures {
  readonly fail_uids: string[];
  readonly reason: string[];
}

type Body = Static<ReturnType<typeof sendBatchBody>>;

export function createSendBatch(messages: Pick<Messages, "send">): (body: Body) => Outcome {
  return (body) => {
    const payload = decodeBase64(body.payload);
    if (payload === undefined) return notBase64();
    assertId(body.from_uid, "from_uid");
    return sendToEach(messages, body, {
      fromUid: body.from_uid,
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

/**
 * Sends the message to each user, and returns the users to whom it could not be sent. Errors that
 * concern the message itself are thrown, as is any error that is not a BrokerError.
 */
async function sendToEach(
  messages: Pick<Messages, "send">,
  { subscribers, client_msg_no: batchNo }: Pick<Body, "subscribers" | "client_msg_no">,
  message: Omit<SendInput, "channel" | "clientMsgNo">,
): Promise<Failures> {
  const failures: Failures = { fail_uids: [], reason: [] };
  const recipients = [...new Set(subscribers)];
  for (let at = 0; at < recipients.length; at += MAX_CONCURRENT_SENDS) {
    const batch = recipients.slice(at, at + MAX_CONCURRENT_SENDS);
    const results = await Promise.allSettled(
      batch.map((uid) =>
        messages.send({
          ...message,
          channel: { id: uid, type: PERSON_CHANNEL },
          clientMsgNo: batchNo ? derivedClientMsgNo(batchNo, uid) : undefined,
        }),
      ),
    );
    for (const [index, result] of results.entries()) {
      if (result.status === "fulfilled") continue;
      const { reason: error } = result;
      if (!(error instanceof BrokerError) || MESSAGE_ERRORS.has(error.code)) throw error;
      failures.fail_uids.push(batch[index] ?? "");
      // Only the id of the recipient can be invalid here. The id of the sender has been checked.
      failures.reason.push(error.code === "bad_id" ? ERRORS.bad_id.message : error.message);
    }
  }
  return failures;
}

/**
 * Returns the clientMsgNo of one recipient's message in a batch. The values differ because WuKongIM
 * clients hide a message whose clientMsgNo they have seen in a different channel.
 */
function derivedClientMsgNo(batchNo: string, uid: string): string {
  return createHash("sha256").update(`${batchNo}\n${uid}`).digest("base64url");
}
