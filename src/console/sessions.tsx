// Sessions page: who is connected to a node, and why past sessions were closed.

import { useEffect, useRef, useState } from "preact/hooks";
import { withQuery } from "./api.ts";
import { byteSize, dateTime, duration, number } from "./format.ts";
import { goTo, type Route, useApi, useLoaded } from "./hooks.ts";
import {
  ActionButton,
  Empty,
  ErrorNote,
  Field,
  FigureHead,
  PageHead,
  Scroll,
  textInput,
  UserLink,
} from "./parts.tsx";
import type { ClosedPage, ClosedRow, NodeRow, OpenPage, SessionRow } from "./replies.ts";

const PAGE_SIZE = 100;
/** Time without a keystroke after which the search begins. */
const TYPING_MS = 300;

const OPEN_SORTS = [
  ["idDesc", "newest first"],
  ["id", "oldest first"],
  ["uptimeDesc", "connected longest"],
  ["uptime", "connected shortest"],
] as const;
const CLOSED_SORTS = [
  ["endDesc", "ended last"],
  ["end", "ended first"],
  ["uptimeDesc", "connected longest"],
  ["uptime", "connected shortest"],
] as const;

interface Filters {
  readonly uid: string;
  readonly ip: string;
  readonly client: string;
  readonly reason: string;
}

export function Sessions({ route }: { readonly route: Route }) {
  const api = useApi();
  const isClosed = route.parameters.state === "closed";
  const [filters, setFilters] = useState<Filters>({
    uid: route.parameters.uid ?? "",
    ...{ ip: "", client: "", reason: "" },
  });
  const [sort, setSort] = useState("");
  const [offset, setOffset] = useState(0);
  const [chosenNode, setChosenNode] = useState<string>();
  /**
   * The node that replied first. Unless a node is chosen, all pages of the list are read from this
   * node, so that the pages are consistent.
   */
  const firstNode = useRef<string | undefined>(undefined);
  const applied = useDelayed(filters);
  const sorts = isClosed ? CLOSED_SORTS : OPEN_SORTS;
  const sortKey = sorts.find(([key]) => key === sort)?.[0] ?? sorts[0][0];
  const { reason, ...openFilters } = applied;
  const path = withQuery("/connz", {
    ...openFilters,
    ...(isClosed ? { state: "closed", reason } : {}),
    sort: sortKey,
    limit: PAGE_SIZE,
    offset: offset || undefined,
  });
  const node = chosenNode ?? firstNode.current;
  const page = useLoaded(`${path} ${chosenNode}`, async () => {
    const body = await api.getFrom<OpenPage | ClosedPage>(path, chosenNode ?? firstNode.current);
    firstNode.current ??= body.node_id;
    return body;
  });
  const nodes = useLoaded("nodes", () => api.get<readonly NodeRow[]>("/cluster/nodes"));
  const { data } = page;
  const change = (name: keyof Filters) => (value: string) => {
    setFilters({ ...filters, [name]: value });
    setOffset(0);
  };
  const total = data?.total ?? 0;
  const lastOfPage = Math.min(total, offset + PAGE_SIZE);
  return (
    <>
      <PageHead title="Sessions" json={path}>
        <button type="button" onClick={page.reload}>
          Reload
        </button>
      </PageHead>
      <div class="tabs" role="tablist" aria-label="Session state">
        {(["open", "closed"] as const).map((state) => (
          <button
            type="button"
            key={state}
            role="tab"
            aria-selected={isClosed === (state === "closed")}
            onClick={() => {
              setOffset(0);
              goTo("sessions", state === "closed" ? { state } : {});
            }}
          >
            {state === "open" ? "Open" : "Closed and refused"}
          </button>
        ))}
      </div>
      <div class="filters">
        <Field label="User id contains">
          <input type="search" {...textInput(filters.uid, change("uid"))} />
        </Field>
        <Field label="Address contains">
          <input type="search" {...textInput(filters.ip, change("ip"))} />
        </Field>
        <Field label="Client contains">
          <input
            type="search"
            placeholder="web, native, device id"
            {...textInput(filters.client, change("client"))}
          />
        </Field>
        {isClosed && (
          <Field label="Reason contains">
            <input type="search" {...textInput(filters.reason, change("reason"))} />
          </Field>
        )}
        <Field label="Order">
          <select value={sortKey} onChange={(event) => setSort(event.currentTarget.value)}>
            {sorts.map(([key, label]) => (
              <option key={key} value={key}>
                {label}
              </option>
            ))}
          </select>
        </Field>
        {(nodes.data?.length ?? 0) > 1 && (
          <Field label="Node">
            <select
              aria-label="Node"
              value={node ?? ""}
              onChange={(event) => {
                setChosenNode(event.currentTarget.value);
                setOffset(0);
              }}
            >
              {nodes.data?.map(({ id }) => (
                <option key={id}>{id}</option>
              ))}
            </select>
          </Field>
        )}
      </div>
      <ErrorNote error={page.error} />
      {data !== undefined && node !== undefined && data.node_id !== node && (
        <p class="note bad" role="alert">
          Node {node} did not reply. These are the sessions on node {data.node_id}.
        </p>
      )}
      {data !== undefined && (
        <section class="card" aria-busy={page.isLoading}>
          <header class="card-head">
            <p class="muted">
              {total === 0
                ? "No"
                : `${number(offset + 1)}–${number(lastOfPage)} of ${number(total)}`}{" "}
              {isClosed ? "closed sessions and refused connects of the last 24 hours" : "sessions"}{" "}
              on node {data.node_id}
            </p>
            <div class="page-actions">
              <button
                type="button"
                class="small"
                disabled={offset === 0}
                onClick={() => setOffset(offset - PAGE_SIZE)}
              >
                Previous
              </button>
              <button
                type="button"
                class="small"
                disabled={lastOfPage >= total}
                onClick={() => setOffset(offset + PAGE_SIZE)}
              >
                Next
              </button>
            </div>
          </header>
          {total === 0 ? (
            <Empty>{isClosed ? "No closed session matches." : "No session matches."}</Empty>
          ) : isClosed ? (
            <ClosedTable rows={data.connections as readonly ClosedRow[]} />
          ) : (
            <OpenTable rows={data.connections} onKicked={page.reload} />
          )}
        </section>
      )}
    </>
  );
}

function OpenTable(props: { readonly rows: readonly SessionRow[]; readonly onKicked: () => void }) {
  const api = useApi();
  const mayKick = api.allows("users:write");
  return (
    <Scroll label="Open sessions">
      <table>
        <thead>
          <tr>
            <th>User</th>
            <th>Address</th>
            <th>Device</th>
            <th>Client</th>
            <FigureHead label="Connected for" help="Time since the login." />
            <FigureHead
              label="Unread"
              help="Bytes that were sent but that the client has not read yet. Above client.maxBufferedBytes, the client is disconnected as a slow reader."
            />
            {mayKick && (
              <th>
                <span class="hidden">Actions</span>
              </th>
            )}
          </tr>
        </thead>
        <tbody>
          {props.rows.map((row) => (
            <tr key={row.id}>
              <td>
                <UserLink uid={row.uid} />
              </td>
              <td>{row.ip}</td>
              <td>
                <DeviceText row={row} />
              </td>
              <td>
                <ClientText row={row} />
              </td>
              <td class="right">{duration(row.uptime)}</td>
              <td class="right">{byteSize(row.pending_bytes)}</td>
              {mayKick && (
                <td class="right">
                  <KickButton row={row} onKicked={props.onKicked} />
                </td>
              )}
            </tr>
          ))}
        </tbody>
      </table>
    </Scroll>
  );
}

export function KickButton(props: {
  readonly row: Pick<SessionRow, "uid" | "id">;
  readonly onKicked: () => void;
}) {
  const api = useApi();
  const { uid, id } = props.row;
  return (
    <ActionButton
      label="Kick"
      confirm="End this session"
      act={() => api.post("/conn/kick", { uid, conn_id: id }).then(props.onKicked)}
    />
  );
}

export function ClosedTable({ rows }: { readonly rows: readonly ClosedRow[] }) {
  return (
    <Scroll label="Closed sessions">
      <table>
        <thead>
          <tr>
            <th>Ended</th>
            <th>User</th>
            <th>Reason</th>
            <FigureHead
              label="Code"
              help="WebSocket close code, or the HTTP status of a refused handshake. 4000 to 4099: the client reconnects at once. 4100 to 4199: after a pause. 4200 to 4299: it does not reconnect. 1006: no close frame."
            />
            <FigureHead label="Connected for" help="Time from the connect to the end." />
            <th>Address</th>
            <th>Device</th>
            <th>Client</th>
          </tr>
        </thead>
        <tbody>
          {rows.map((row, index) => (
            <tr key={`${row.id} ${row.ended} ${index}`}>
              <td class="nowrap">{dateTime(Date.parse(row.ended))}</td>
              <td>
                {row.uid === "" ? <em class="muted">unknown</em> : <UserLink uid={row.uid} />}
              </td>
              <td class="why">
                <span class={`badge ${row.refused ? "warning" : "plain"}`}>
                  {row.refused ? `refused: ${row.error ?? row.reason}` : row.reason}
                </span>{" "}
                {row.message}
                {row.origin !== undefined && <span class="muted"> {row.origin}</span>}
              </td>
              <td class="right">{row.code}</td>
              <td class="right">{duration(row.uptime)}</td>
              <td>{row.ip}</td>
              <td>
                <DeviceText row={row} />
              </td>
              <td>
                <ClientText row={row} />
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </Scroll>
  );
}

function DeviceText({ row }: { readonly row: SessionRow }) {
  return (
    <>
      {row.device}
      {row.device_level === 1 && <span class="badge plain spaced">main</span>}
      {row.device_id !== "" && <span class="muted"> {row.device_id}</span>}
    </>
  );
}

function ClientText({ row }: { readonly row: SessionRow }) {
  if (row.format === "") return <em class="muted">sent nothing</em>;
  return (
    <>
      {row.format.endsWith(`v${row.version}`) ? row.format : `${row.format} ${row.version}`}
      {row.listener !== "client" && <span class="muted"> {row.listener}</span>}
    </>
  );
}

/** Returns the newest value that has stayed the same for `TYPING_MS` milliseconds. */
function useDelayed<Value>(value: Value): Value {
  const [delayed, setDelayed] = useState(value);
  useEffect(() => {
    const timer = setTimeout(() => setDelayed(value), TYPING_MS);
    return () => clearTimeout(timer);
  }, [value]);
  return delayed;
}
