// Settings page: the effective configuration (each value with its source), the managers and the
// nodes.

import { useState } from "preact/hooks";
import { duration, number } from "./format.ts";
import { useApi, useLoaded } from "./hooks.ts";
import { Card, ErrorNote, Field, Help, PageHead, Scroll, textInput } from "./parts.tsx";
import type { Configuration, NodeRow, Setting } from "./replies.ts";

export function Settings() {
  const api = useApi();
  const [text, setText] = useState("");
  const [onlySet, setOnlySet] = useState(false);
  const path = "/admin/config";
  const { data, error } = useLoaded(path, () => api.get<Configuration>(path));
  const nodes = useLoaded("nodes", () => api.get<readonly NodeRow[]>("/cluster/nodes"));
  const shown = data?.settings.filter(
    ({ key, is_set, description }) =>
      (!onlySet || is_set === 1) &&
      `${key} ${description}`.toLowerCase().includes(text.toLowerCase()),
  );
  const managers = data?.settings.find(({ key }) => key === "managers")?.value;
  return (
    <>
      <PageHead title="Settings" json={path} />
      <ErrorNote error={error} />
      <div class="columns">
        <Card title="Nodes and versions" json="/cluster/nodes">
          <ul class="rows">
            {nodes.data?.map((node) => (
              <li key={node.id}>
                <span>
                  {node.id} <span class="muted">{node.address}</span>
                </span>
                <span class="muted">
                  version {node.version}, up {duration(node.uptime)}
                </span>
              </li>
            ))}
          </ul>
        </Card>
        <Card
          title="Managers"
          help="Accounts that can log in at POST /manager/login. Without configured managers, there is one account, admin."
        >
          <ul class="rows">
            {(Array.isArray(managers) && managers.length > 0
              ? managers
              : [{ username: "admin", role: "admin", permissions: [] }]
            ).map(
              ({
                username,
                role,
                permissions,
              }: {
                readonly username: string;
                readonly role: string;
                readonly permissions: readonly string[];
              }) => (
                <li key={username}>
                  {username}
                  <span class="muted">
                    {role}
                    {permissions.length > 0 && `: ${permissions.join(", ")}`}
                  </span>
                </li>
              ),
            )}
          </ul>
        </Card>
      </div>
      <div class="filters">
        <Field label="Search">
          <input type="search" {...textInput(text, setText)} />
        </Field>
        <label class="inline">
          <input type="checkbox" checked={onlySet} onChange={() => setOnlySet(!onlySet)} /> only
          what differs from the default
        </label>
      </div>
      {shown !== undefined && (
        <section class="card">
          <p class="muted">
            {number(shown.length)} settings of node {data?.node_id}
          </p>
          <Scroll label="Settings">
            <table class="settings">
              <thead>
                <tr>
                  <th>Setting</th>
                  <th>Value</th>
                  <th>Source</th>
                </tr>
              </thead>
              <tbody>
                {shown.map((setting) => (
                  <tr key={setting.key} class={setting.is_set ? "is-set" : ""}>
                    <td class="nowrap">
                      <code>{setting.key}</code>
                      <Help of={setting.key}>{setting.description}</Help>
                    </td>
                    <td>
                      <Value setting={setting} />
                    </td>
                    <td class="muted">{setting.source}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          </Scroll>
        </section>
      )}
    </>
  );
}

function Value({ setting }: { readonly setting: Setting }) {
  const { value, unit, is_secret, is_set } = setting;
  if (is_secret)
    return <span class="badge plain">{is_set ? "secret, set" : "secret, not set"}</span>;
  if (value === "" || (Array.isArray(value) && value.length === 0))
    return <span class="muted">empty</span>;
  const text = typeof value === "string" ? value : JSON.stringify(value);
  return (
    <>
      <code>{text}</code>
      {unit !== undefined && <span class="muted"> {unit}</span>}
    </>
  );
}
