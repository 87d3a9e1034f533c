// User page: the user's sessions, devices, conversations, groups and commands on all nodes, and why
// the user is offline.

import { useEffect, useState } from "preact/hooks";
import { withQuery } from "./api.ts";
import { dateTime, decodePayload, number, summaryOf, textPayload } from "./format.ts";
import { goTo, type Route, useApi, useLoaded } from "./hooks.ts";
import {
  ActionButton,
  Card,
  ChannelLink,
  Empty,
  ErrorNote,
  Field,
  Missing,
  PageHead,
  textInput,
} from "./parts.tsx";
import {
  type ClosedPage,
  type ClosedRow,
  type Conversation,
  DEVICE_NAMES,
  type Devices,
  type MessageRow,
  type NodeRow,
} from "./replies.ts";
import { ClosedTable, KickButton } from "./sessions.tsx";

const POLL_MS = 5000;
/** Maximum number of conversations that are shown. Also the maximum for groups and for commands. */
const SHOWN = 50;

export function User({ route }: { readonly route: Route }) {
  const uid = route.parameters.uid ?? "";
  const [text, setText] = useState(uid);
  useEffect(() => setText(uid), [uid]);
  return (
    <>
      <PageHead title={uid === "" ? "User" : uid} />
      <form
        class="filters"
        onSubmit={(event) => {
          event.preventDefault();
          goTo("user", text === "" ? {} : { uid: text });
        }}
      >
        <Field label="User id">
          <input type="search" {...textInput(text, setText)} />
        </Field>
        <button type="submit" class="primary">
          Look up
        </button>
      </form>
      {uid === "" ? (
        <Empty>Enter a user's exact id. To search by part of an id, use Sessions.</Empty>
      ) : (
        <UserDetails key={uid} uid={uid} />
      )}
    </>
  );
}

function UserDetails({ uid }: { readonly uid: string }) {
  const api = useApi();
  const path = withQuery("/user/devices", { uid });
  const devices = useLoaded(path, () => api.get<Devices>(path), POLL_MS);
  const mayWrite = api.allows("users:write");
  const isOnline = (devices.data?.sessions.length ?? 0) > 0;
  return (
    <>
      <ErrorNote error={devices.error} />
      {devices.data !== undefined && (
        <section class={`verdict ${isOnline ? "good" : "plain"}`}>
          <p class="verdict-text">
            <span class="dot" aria-hidden="true" />
            {isOnline
              ? `Online with ${number(devices.data.sessions.length)} session${devices.data.sessions.length === 1 ? "" : "s"}`
              : devices.data.devices.length === 0
                ? "Offline. No token has ever been registered for this user"
                : "Offline"}
          </p>
        </section>
      )}
      {devices.data !== undefined && !isOnline && <WhyOffline uid={uid} />}
      <div class="columns">
        <Card title="Sessions" json={path} help="The user's live sessions on all nodes.">
          {devices.data?.sessions.length === 0 && <Empty>No session on any node.</Empty>}
          <ul class="rows">
            {devices.data?.sessions.map((session) => (
              <li key={session.session_id}>
                <span>
                  {DEVICE_NAMES[session.device_flag]}
                  {session.device_level === 1 && <span class="badge plain spaced">main</span>}{" "}
                  <span class="muted">
                    {session.device_id} on node {session.node_id}
                  </span>
                </span>
                {mayWrite && (
                  <KickButton row={{ uid, id: session.session_id }} onKicked={devices.reload} />
                )}
              </li>
            ))}
          </ul>
        </Card>
        <Card
          title="Devices"
          json={path}
          help="Device types for which a token has been registered. The button Log out revokes the token and ends the sessions on devices of that type."
        >
          {devices.data?.devices.length === 0 && <Empty>No token has been registered.</Empty>}
          <ul class="rows">
            {devices.data?.devices.map((device) => (
              <li key={device.device_flag}>
                <span>
                  {DEVICE_NAMES[device.device_flag]}{" "}
                  <span class="muted">
                    {device.device_level === 1 ? "main device" : "secondary device"},{" "}
                    {device.has_token ? "logged in" : "logged out"}
                  </span>
                </span>
                {mayWrite && device.has_token === 1 && (
                  <ActionButton
                    label="Log out"
                    confirm="Revoke the token"
                    act={() =>
                      api
                        .post("/user/device_quit", { uid, device_flag: device.device_flag })
                        .then(devices.reload)
                    }
                  />
                )}
              </li>
            ))}
          </ul>
        </Card>
        <Conversations uid={uid} />
        <Groups uid={uid} />
        <Inbox uid={uid} />
        {api.allows("messages:write") && <TestMessage uid={uid} />}
      </div>
    </>
  );
}

/** Shows the user's closed sessions on all nodes that can be reached through the balancer. */
function WhyOffline({ uid }: { readonly uid: string }) {
  const api = useApi();
  const path = withQuery("/connz", { state: "closed", uid, limit: 20 });
  const { data, error } = useLoaded(path, async () => {
    const nodes = await api.get<readonly NodeRow[]>("/cluster/nodes");
    const pages = new Map<string, readonly ClosedRow[]>();
    for (const { id } of nodes) {
      const page = await api.getFrom<ClosedPage>(path, id);
      pages.set(page.node_id, page.connections);
    }
    const missing = nodes.map(({ id }) => id).filter((id) => !pages.has(id));
    const rows = [...pages.values()].flat().filter((row) => row.uid === uid);
    rows.sort((a, b) => (a.ended < b.ended ? 1 : -1));
    return { rows, missing };
  });
  const [newest] = data?.rows ?? [];
  return (
    <Card
      title="Why offline"
      json={path}
      help="The user's sessions that ended in the last 24 hours, and refused connects with this user id, as far as the nodes have them in memory."
    >
      <ErrorNote error={error} />
      {data !== undefined && newest === undefined && (
        <Empty>The nodes remember no session of this user that ended in the last 24 hours.</Empty>
      )}
      {newest !== undefined && (
        <>
          <p class="note">
            {newest.refused ? "The last connect was refused" : "The last session ended"}{" "}
            {dateTime(Date.parse(newest.ended))}: {newest.message}.
          </p>
          <ClosedTable rows={data?.rows ?? []} />
        </>
      )}
      {(data?.missing.length ?? 0) > 0 && (
        <p class="note">
          Not included, because the balancer did not reach these nodes: {data?.missing.join(", ")}
        </p>
      )}
    </Card>
  );
}

function Conversations({ uid }: { readonly uid: string }) {
  const api = useApi();
  const isAllowed = api.allows("messages:write");
  const { data, error } = useLoaded(
    `conversations ${uid}`,
    async () =>
      isAllowed
        ? api.post<readonly Conversation[]>("/conversation/sync", {
            uid,
            msg_count: 0,
            limit: SHOWN,
          })
        : [],
    POLL_MS,
  );
  return (
    <Card
      title="Conversations"
      help="The user's conversations with their unread counts, newest first. The list comes from POST /conversation/sync."
    >
      {!isAllowed && <Missing permission="messages:write" what="conversations" />}
      <ErrorNote error={error} />
      {isAllowed && data?.length === 0 && <Empty>No conversations.</Empty>}
      <ul class="rows">
        {data?.map((conversation) => (
          <li key={`${conversation.channel_type} ${conversation.channel_id}`}>
            <ChannelLink
              id={conversation.channel_id}
              type={conversation.channel_type}
              uid={conversation.channel_type === 1 ? uid : undefined}
            />
            <span>
              <span class="muted">
                read up to {number(conversation.readed_to_msg_seq)} of{" "}
                {number(conversation.last_msg_seq)}
              </span>{" "}
              {conversation.unread > 0 && (
                <span class="badge count">{number(conversation.unread)} unread</span>
              )}
            </span>
          </li>
        ))}
      </ul>
    </Card>
  );
}

function Groups({ uid }: { readonly uid: string }) {
  const api = useApi();
  const path = withQuery("/user/channels", { uid, limit: SHOWN });
  const { data, error } = useLoaded(path, () =>
    api.get<{
      readonly channels: readonly { readonly channel_id: string; readonly channel_type: number }[];
      readonly cursor: string;
    }>(path),
  );
  return (
    <Card title="Groups" json={path} help="Groups to which the user subscribes.">
      <ErrorNote error={error} />
      {data?.channels.length === 0 && <Empty>The user is not in any group.</Empty>}
      <ul class="chips">
        {data?.channels.map(({ channel_id, channel_type }) => (
          <li key={channel_id}>
            <ChannelLink id={channel_id} type={channel_type} />
          </li>
        ))}
      </ul>
      {data !== undefined && data.cursor !== "" && <p class="muted">The first {SHOWN} groups.</p>}
    </Card>
  );
}

function Inbox({ uid }: { readonly uid: string }) {
  const api = useApi();
  const isAllowed = api.allows("messages:write");
  const { data, error } = useLoaded(
    `inbox ${uid}`,
    async () =>
      isAllowed ? api.post<readonly MessageRow[]>("/message/sync", { uid, limit: SHOWN }) : [],
    POLL_MS,
  );
  return (
    <Card
      title="Command inbox"
      help="Commands that none of the user's devices has acknowledged, oldest first. Reading them here does not acknowledge them. The list comes from POST /message/sync."
    >
      {!isAllowed && <Missing permission="messages:write" what="commands" />}
      <ErrorNote error={error} />
      {isAllowed && data?.length === 0 && <Empty>The inbox is empty.</Empty>}
      <ul class="rows">
        {data?.map((command) => (
          <li key={command.message_idstr}>
            <span class="clip">{summaryOf(decodePayload(command.payload))}</span>
            <span class="muted nowrap">
              from {command.from_uid}, {dateTime(command.timestamp_ms)}
            </span>
          </li>
        ))}
      </ul>
    </Card>
  );
}

function TestMessage({ uid }: { readonly uid: string }) {
  const api = useApi();
  const [from, setFrom] = useState("____system");
  const [text, setText] = useState("Test message from the operator");
  const [result, setResult] = useState<string>();
  const [error, setError] = useState<Error>();
  const send = async () => {
    setError(undefined);
    setResult(undefined);
    try {
      const body = { from_uid: from, channel_id: uid, channel_type: 1, payload: textPayload(text) };
      const { message_seq } = await api.post<{ readonly message_seq: number }>(
        "/message/send",
        body,
      );
      setResult(`Stored as number ${message_seq} in the conversation of ${from} and ${uid}.`);
    } catch (failure) {
      setError(failure as Error);
    }
  };
  return (
    <Card
      title="Send a test message"
      help="Sends a text message to the user, who sees it as a message from the sender."
    >
      <form
        class="stack"
        onSubmit={(event) => {
          event.preventDefault();
          void send();
        }}
      >
        <Field label="Sender">
          <input required {...textInput(from, setFrom)} />
        </Field>
        <Field label="Text">
          <input required {...textInput(text, setText)} />
        </Field>
        <button type="submit">Send to {uid}</button>
        <ErrorNote error={error} />
        {result !== undefined && (
          <p class="note good" role="status">
            {result}
          </p>
        )}
      </form>
    </Card>
  );
}
