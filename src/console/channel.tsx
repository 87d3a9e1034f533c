// Channel page: the busiest channels, and the flags, members, lists, messages and streams of one
// channel. The page is updated while it is visible.

import { useEffect, useState } from "preact/hooks";
import { ApiError, withQuery } from "./api.ts";
import { clockTime, dateTime, decodePayload, number, summaryOf } from "./format.ts";
import { goTo, type Route, useApi, useLoaded } from "./hooks.ts";
import {
  ActionButton,
  Card,
  ChannelLink,
  ChannelTypeSelect,
  Empty,
  ErrorNote,
  Field,
  FigureHead,
  Missing,
  PageButtons,
  PageHead,
  Scroll,
  textInput,
  UserLink,
} from "./parts.tsx";
import type { Busiest, ChannelState, MessageRow, MessagesPage } from "./replies.ts";

const POLL_MS = 5000;
const TAIL_MS = 1000;
const PAGE_SIZE = 50;
const MEMBERS = 200;

interface Target {
  readonly id: string;
  readonly type: number;
  /** The other user of a personal channel. */
  readonly uid: string;
}

export function Channel({ route }: { readonly route: Route }) {
  const { id = "", type = "2", uid = "" } = route.parameters;
  const [text, setText] = useState({ id, type, uid });
  useEffect(() => setText({ id, type, uid }), [id, type, uid]);
  const target: Target = { id, type: Number(type), uid };
  const isComplete = id !== "" && (type === "2" || uid !== "");
  return (
    <>
      <PageHead title={id === "" ? "Channel" : type === "1" ? `${uid} ↔ ${id}` : id} />
      <form
        class="filters"
        onSubmit={(event) => {
          event.preventDefault();
          const { id: newId, type: newType, uid: newUid } = text;
          goTo("channel", {
            id: newId,
            type: newType,
            ...(newType === "1" ? { uid: newUid } : {}),
          });
        }}
      >
        <Field label="Type">
          <ChannelTypeSelect
            value={text.type}
            change={(value) => setText({ ...text, type: value })}
          />
        </Field>
        <Field label={text.type === "1" ? "One user" : "Channel id"}>
          <input
            type="search"
            required
            {...textInput(text.id, (value) => setText({ ...text, id: value }))}
          />
        </Field>
        {text.type === "1" && (
          <Field label="The other user">
            <input
              type="search"
              required
              {...textInput(text.uid, (value) => setText({ ...text, uid: value }))}
            />
          </Field>
        )}
        <button type="submit" class="primary">
          Look up
        </button>
      </form>
      {isComplete ? (
        <ChannelDetails key={`${type} ${id} ${uid}`} target={target} />
      ) : (
        <BusiestChannels />
      )}
    </>
  );
}

function BusiestChannels() {
  const api = useApi();
  const path = "/channels/busiest?limit=50";
  const { data, error } = useLoaded(path, () => api.get<Busiest>(path), POLL_MS);
  const most = Math.max(
    1,
    ...(data?.channels.map(({ messages, events }) => messages + events) ?? []),
  );
  return (
    <Card
      title={`Busiest channels of the last 15 minutes${data === undefined ? "" : ` on node ${data.node_id}`}`}
      json={path}
      help="Accepted messages and events that were sent through the node that replies, without retries. A channel with less than a thousandth of them may be missing."
    >
      <ErrorNote error={error} />
      {data?.channels.length === 0 && <Empty>Nothing was sent in the last 15 minutes.</Empty>}
      {data !== undefined && data.channels.length > 0 && (
        <Scroll label="Busiest channels">
          <table>
            <thead>
              <tr>
                <th>Channel</th>
                <th>Type</th>
                <FigureHead
                  label="Messages"
                  help="Accepted messages and commands, without retries."
                />
                <FigureHead label="Events" help="Accepted events, including stream events." />
                <th>
                  <span class="hidden">Share of the busiest channel</span>
                </th>
              </tr>
            </thead>
            <tbody>
              {data.channels.map(({ channel_id, channel_type, uid, messages, events }) => (
                <tr key={`${channel_type} ${channel_id} ${uid ?? ""}`}>
                  <td>
                    <ChannelLink id={channel_id} type={channel_type} uid={uid} />
                  </td>
                  <td>{channel_type === 1 ? "personal" : "group"}</td>
                  <td class="right">{number(messages)}</td>
                  <td class="right">{number(events)}</td>
                  <td class="bar">
                    <meter
                      min={0}
                      max={most}
                      value={messages + events}
                      aria-label={`Share of ${channel_id}`}
                    />
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </Scroll>
      )}
    </Card>
  );
}

function ChannelDetails({ target }: { readonly target: Target }) {
  return (
    <>
      <div class="columns">
        <StateCard target={target} />
        <MembersCard target={target} />
      </div>
      <Messages target={target} />
    </>
  );
}

const FLAGS: readonly (readonly [flag: keyof ChannelState, meaning: string])[] = [
  ["ban", "only system accounts may send"],
  ["send_ban", "members may not send"],
  ["disband", "disbanded"],
  ["allow_stranger", "strangers may send"],
  ["large", "super-large: no state per member"],
];

function StateCard({ target }: { readonly target: Target }) {
  const api = useApi();
  const path = withQuery("/channel/state", { channel_id: target.id, channel_type: target.type });
  const { data, error } = useLoaded(path, () => api.get<ChannelState>(path), POLL_MS);
  const isUnknown = error instanceof ApiError && error.status === 404;
  const title = target.type === 1 ? `Rules of ${target.id}` : "State";
  return (
    <Card
      title={title}
      json={path}
      help="The channel's flags and user counts. For a personal channel, these are the receiving user's rules."
    >
      {isUnknown ? (
        <Empty>
          {target.type === 1
            ? "The user has no channel record. Everybody may send, except users on the user's blacklist. If messages.friendsOnly is true, only users on the user's whitelist may send."
            : "There is no group with this id."}
        </Empty>
      ) : (
        <ErrorNote error={error} />
      )}
      {data !== undefined && (
        <>
          <p class="flags">
            {FLAGS.filter(([flag]) => data[flag] === 1).map(([flag, meaning]) => (
              <span key={flag} class="badge warning">
                {flag}: {meaning}
              </span>
            ))}
            {FLAGS.every(([flag]) => data[flag] === 0) && (
              <span class="badge fine">no flags set</span>
            )}
          </p>
          <dl class="facts">
            <dt>Subscribers</dt>
            <dd>{number(data.subscriber_count)}</dd>
            <dt>On the blacklist</dt>
            <dd>{number(data.blacklist_count)}</dd>
            <dt>On the whitelist</dt>
            <dd>{number(data.whitelist_count)}</dd>
            {target.type === 2 && (
              <>
                <dt>Newest message</dt>
                <dd>
                  {data.last_message_seq === 0 ? "none" : `number ${number(data.last_message_seq)}`}
                </dd>
              </>
            )}
          </dl>
        </>
      )}
    </Card>
  );
}

const LISTS = ["subscribers", "blacklist", "whitelist"] as const;

function MembersCard({ target }: { readonly target: Target }) {
  const api = useApi();
  const [list, setList] = useState<(typeof LISTS)[number]>("subscribers");
  const [cursor, setCursor] = useState("");
  const path = withQuery("/channel/members", {
    ...{ channel_id: target.id, channel_type: target.type },
    ...{ list, cursor, limit: MEMBERS },
  });
  const { data, error } = useLoaded(path, () =>
    api.get<{ readonly uids: readonly string[]; readonly cursor: string }>(path),
  );
  return (
    <Card
      title="Members and lists"
      json={path}
      help="Permanent and temporary subscribers, or the users on the lists."
    >
      <div class="tabs" role="tablist" aria-label="List">
        {LISTS.map((name) => (
          <button
            type="button"
            key={name}
            role="tab"
            aria-selected={name === list}
            onClick={() => {
              setList(name);
              setCursor("");
            }}
          >
            {name}
          </button>
        ))}
      </div>
      <ErrorNote error={error} />
      {data?.uids.length === 0 && <Empty>Nobody.</Empty>}
      <ul class="chips">
        {data?.uids.map((uid) => (
          <li key={uid}>
            <UserLink uid={uid} />
          </li>
        ))}
      </ul>
      {data !== undefined && <PageButtons cursor={cursor} next={data.cursor} go={setCursor} />}
    </Card>
  );
}

function Messages({ target }: { readonly target: Target }) {
  const api = useApi();
  const isAllowed = api.allows("messages:write");
  const [before, setBefore] = useState<number>();
  const [isLive, setLive] = useState(true);
  const path = withQuery("/channel/messages", {
    ...{ channel_id: target.id, channel_type: target.type, uid: target.uid },
    ...{ before, order: "desc", limit: PAGE_SIZE },
  });
  const isTail = isLive && before === undefined;
  const { data, error, reload } = useLoaded(
    path,
    async () => (isAllowed ? api.get<MessagesPage>(path) : undefined),
    isTail ? TAIL_MS : 0,
  );
  const oldest = data?.messages.at(-1)?.message_seq;
  return (
    <Card
      title="Messages"
      json={isAllowed ? path : undefined}
      help="Newest messages first. The live tail reads the newest messages again once a second while this page is visible."
      aside={
        isAllowed && (
          <label class="inline">
            <input
              type="checkbox"
              checked={isTail}
              disabled={before !== undefined}
              onChange={() => setLive(!isLive)}
            />{" "}
            live
          </label>
        )
      }
    >
      {!isAllowed && <Missing permission="messages:write" what="messages" />}
      <ErrorNote error={error} />
      {data?.messages.length === 0 && <Empty>No messages.</Empty>}
      <ol class="messages">
        {data?.messages.map((message) => (
          <Message
            key={message.message_idstr}
            message={message}
            target={target}
            onChange={reload}
          />
        ))}
      </ol>
      {data !== undefined && (
        <div class="page-actions">
          {before !== undefined && (
            <button type="button" class="small" onClick={() => setBefore(undefined)}>
              Newest
            </button>
          )}
          {data.more === 1 && oldest !== undefined && (
            <button type="button" class="small" onClick={() => setBefore(oldest)}>
              Older
            </button>
          )}
        </div>
      )}
    </Card>
  );
}

function Message(props: {
  readonly message: MessageRow;
  readonly target: Target;
  readonly onChange: () => void;
}) {
  const { message, target, onChange } = props;
  const api = useApi();
  const [isOpen, setOpen] = useState(false);
  const payload = decodePayload(message.payload);
  const { stream } = message;
  const isActive = stream?.state === "active";
  return (
    <li class={isActive ? "message active" : "message"}>
      <div class="message-head">
        <span class="seq">{message.message_seq}</span>
        <UserLink uid={message.from_uid} />
        <time class="muted" title={new Date(message.timestamp_ms).toISOString()}>
          {dateTime(message.timestamp_ms)}
        </time>
        {stream !== undefined && (
          <span class={`badge ${isActive ? "count" : "plain"}`}>stream {stream.state}</span>
        )}
        <span class="message-actions">
          {isActive && api.allows("events:write") && (
            <ActionButton
              label="Cancel"
              confirm="Cancel the stream"
              act={() =>
                api
                  .post("/stream/cancel", {
                    channel_id: target.id,
                    channel_type: target.type,
                    client_msg_no: message.client_msg_no,
                    ...(target.type === 1 ? { uid: target.uid } : {}),
                  })
                  .then(onChange)
              }
            />
          )}
          <button
            type="button"
            class="small"
            aria-expanded={isOpen}
            onClick={() => setOpen(!isOpen)}
          >
            {isOpen ? "Hide" : "Details"}
          </button>
        </span>
      </div>
      <p class="message-text">{stream?.text ?? summaryOf(payload)}</p>
      {isOpen && (
        <pre class="json">
          {JSON.stringify(
            { ...message, payload, stored: clockTime(message.timestamp_ms) },
            undefined,
            2,
          )}
        </pre>
      )}
    </li>
  );
}
