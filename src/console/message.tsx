// Message page: whether a message was stored, its sequence number, and who has read it.

import { useState } from "preact/hooks";
import { withQuery } from "./api.ts";
import { dateTime, decodePayload, number } from "./format.ts";
import { useApi, useLoaded } from "./hooks.ts";
import {
  Card,
  ChannelLink,
  ChannelTypeSelect,
  Empty,
  ErrorNote,
  Field,
  Missing,
  PageButtons,
  PageHead,
  textInput,
  UserLink,
} from "./parts.tsx";
import type { MessageRow } from "./replies.ts";

interface Question {
  readonly type: string;
  readonly channel: string;
  readonly uid: string;
  readonly messageId: string;
  readonly clientMsgNo: string;
}

const EMPTY: Question = { type: "2", channel: "", uid: "", messageId: "", clientMsgNo: "" };

export function MessageSearch() {
  const api = useApi();
  const [draft, setDraft] = useState(EMPTY);
  const [question, setQuestion] = useState<Question>();
  const change = (name: keyof Question) => (value: string) => setDraft({ ...draft, [name]: value });
  if (!api.allows("messages:write"))
    return (
      <>
        <PageHead title="Message" />
        <Missing permission="messages:write" what="messages" />
      </>
    );
  return (
    <>
      <PageHead title="Message" />
      <form
        class="filters"
        onSubmit={(event) => {
          event.preventDefault();
          setQuestion(draft);
        }}
      >
        <Field label="Channel type">
          <ChannelTypeSelect value={draft.type} change={change("type")} />
        </Field>
        <Field label={draft.type === "1" ? "One user" : "Channel id"}>
          <input required {...textInput(draft.channel, change("channel"))} />
        </Field>
        <Field
          label={
            draft.type === "1" ? "The other user, or the sender" : "Sender (for a client_msg_no)"
          }
        >
          <input required={draft.type === "1"} {...textInput(draft.uid, change("uid"))} />
        </Field>
        <Field label="Message id">
          <input
            inputMode="numeric"
            pattern="[0-9]*"
            {...textInput(draft.messageId, change("messageId"))}
          />
        </Field>
        <Field label="or client_msg_no">
          <input
            required={draft.messageId === ""}
            {...textInput(draft.clientMsgNo, change("clientMsgNo"))}
          />
        </Field>
        <button type="submit" class="primary">
          Search
        </button>
      </form>
      {question === undefined ? (
        <Empty>
          A message is looked up in its channel: by its id, or by the client_msg_no that the sender
          chose. There is no search over all channels.
        </Empty>
      ) : (
        <Result key={JSON.stringify(question)} question={question} />
      )}
    </>
  );
}

interface Lookup {
  readonly messages: readonly MessageRow[];
}

function Result({ question }: { readonly question: Question }) {
  const api = useApi();
  const { type, channel, uid, messageId, clientMsgNo } = question;
  const isById = messageId !== "";
  const find = async (names: object) => {
    const { messages } = await api.post<Lookup>("/messages", {
      ...{ channel_id: channel, channel_type: Number(type) },
      ...(type === "1" ? { login_uid: uid } : { login_uid: "" }),
      ...names,
    });
    return messages;
  };
  const { data, error } = useLoaded("message", async () => {
    if (isById) return find({ message_ids: [messageId] });
    const numbers = { client_msg_nos: [clientMsgNo] };
    const senders = type === "1" ? [uid, channel] : [uid];
    for (const sender of senders) {
      const own = sender === "" ? [] : await find({ ...numbers, from_uid: sender });
      if (own.length > 0) return own;
    }
    return find(numbers);
  });
  const message = data?.find(
    ({ from_uid }) => type === "1" || uid === "" || isById || from_uid === uid,
  );
  if (error !== undefined) return <ErrorNote error={error} />;
  if (data === undefined) return null;
  if (message === undefined)
    return (
      <section class="verdict warn">
        <p class="verdict-text">
          <span class="dot" aria-hidden="true" />
          Not stored
        </p>
        <p class="muted">
          {isById
            ? "The channel has no message with this id, or the message has expired."
            : uid === ""
              ? "None of the newest 5,000 messages of the channel has this client_msg_no, or the message has expired. Enter the sender to also search older messages for which a retry is still recognised (store.dedupeWindowS)."
              : "Neither the sender's messages for which a retry is still recognised (store.dedupeWindowS) nor the newest 5,000 messages of the channel have this client_msg_no, or the message has expired. A message that is sent with this client_msg_no now is stored as a new message."}
        </p>
        {data[0] !== undefined && (
          <p class="note">
            The channel has a message with this number from a different sender,{" "}
            <UserLink uid={data[0].from_uid} />.
          </p>
        )}
      </section>
    );
  return (
    <>
      <section class="verdict good">
        <p class="verdict-text">
          <span class="dot" aria-hidden="true" />
          Stored as number {number(message.message_seq)} of its channel
        </p>
        <p class="muted">
          A retry by the same sender with the same client_msg_no and payload returns the id{" "}
          {message.message_idstr} and the number {message.message_seq}, and nothing is stored again.
        </p>
      </section>
      <div class="columns">
        <Card title="Message">
          <dl class="facts">
            <dt>Id</dt>
            <dd>{message.message_idstr}</dd>
            <dt>Channel</dt>
            <dd>
              <ChannelLink id={channel} type={Number(type)} uid={type === "1" ? uid : undefined} />
            </dd>
            <dt>Sender</dt>
            <dd>
              <UserLink uid={message.from_uid} />
            </dd>
            <dt>client_msg_no</dt>
            <dd>{message.client_msg_no}</dd>
            <dt>Accepted</dt>
            <dd>{dateTime(message.timestamp_ms)}</dd>
          </dl>
          <pre class="json">
            {JSON.stringify({ ...message, payload: decodePayload(message.payload) }, undefined, 2)}
          </pre>
        </Card>
        <Readers question={question} seq={message.message_seq} />
      </div>
    </>
  );
}

interface ReadersPage {
  readonly readers: readonly {
    readonly uid: string;
    readonly read_seq: number;
    readonly has_read: 0 | 1;
  }[];
  readonly cursor: string;
}

function Readers({ question, seq }: { readonly question: Question; readonly seq: number }) {
  const api = useApi();
  const { type, channel, uid } = question;
  const [cursor, setCursor] = useState("");
  const path = withQuery("/channel/readers", {
    ...{ channel_id: channel, channel_type: type, uid: type === "1" ? uid : "" },
    ...{ message_seq: seq, cursor },
  });
  const { data, error } = useLoaded(path, () => api.get<ReadersPage>(path));
  return (
    <Card
      title="Read by"
      json={path}
      help="Based on the members' read positions: a member who has read a later message counts as a reader. Read is not the same as received: a device may have a message that its user has not read."
    >
      <ErrorNote error={error} />
      {data?.readers.length === 0 && (
        <Empty>The channel has no members, or the server keeps no read positions for it.</Empty>
      )}
      <ul class="rows">
        {data?.readers.map(({ uid: reader, read_seq, has_read }) => (
          <li key={reader}>
            <UserLink uid={reader} />
            <span>
              <span class="muted">read up to {number(read_seq)}</span>{" "}
              <span class={`badge ${has_read ? "fine" : "plain"}`}>
                {has_read ? "read" : "not read"}
              </span>
            </span>
          </li>
        ))}
      </ul>
      {data !== undefined && <PageButtons cursor={cursor} next={data.cursor} go={setCursor} />}
    </Card>
  );
}
