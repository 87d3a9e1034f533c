// API page: a form for each call in the OpenAPI document, with the reply and an equivalent curl
// command.

import { useState } from "preact/hooks";
import { type Answer, bodyText, withQuery } from "./api.ts";
import { useApi, useLoaded } from "./hooks.ts";
import { Card, CurlLine, ErrorNote, Field, PageHead, textInput } from "./parts.tsx";

interface Parameter {
  readonly name: string;
  readonly in: "query" | "path" | "header";
  readonly required?: boolean;
  readonly description?: string;
}

interface Operation {
  readonly summary: string;
  readonly tags?: readonly string[];
  readonly parameters?: readonly Parameter[];
  readonly requestBody?: {
    readonly content: Readonly<Record<string, { readonly schema: Schema }>>;
  };
  readonly "x-permissions"?: readonly string[];
}

interface Schema {
  readonly $ref?: string;
  readonly examples?: readonly unknown[];
}

interface OpenApi {
  readonly paths: Readonly<Record<string, Readonly<Record<string, Operation>>>>;
  readonly components: { readonly schemas: Readonly<Record<string, Schema>> };
}

interface Call {
  readonly method: string;
  readonly path: string;
  readonly operation: Operation;
}

export function Calls() {
  const api = useApi();
  const { data, error } = useLoaded("openapi", () => api.get<OpenApi>("/openapi.json"));
  const [text, setText] = useState("");
  const [chosen, setChosen] = useState<string>();
  const calls = Object.entries(data?.paths ?? {}).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, operation]) => ({
      method: method.toUpperCase(),
      path,
      operation,
    })),
  );
  const shown = calls.filter(({ path, operation }) =>
    `${path} ${operation.summary}`.toLowerCase().includes(text.toLowerCase()),
  );
  const call = calls.find((each) => keyOf(each) === chosen);
  return (
    <>
      <PageHead title="API" json="/openapi.json" />
      <ErrorNote error={error} />
      <div class="calls">
        <Card title="Calls" class="call-list">
          <Field label="Search">
            <input type="search" {...textInput(text, setText)} />
          </Field>
          <ul>
            {shown.map((each) => (
              <li key={keyOf(each)}>
                <button
                  type="button"
                  class="call"
                  aria-pressed={keyOf(each) === chosen}
                  onClick={() => setChosen(keyOf(each))}
                >
                  <span class={`method ${each.method.toLowerCase()}`}>{each.method}</span>{" "}
                  {each.path}
                </button>
              </li>
            ))}
          </ul>
        </Card>
        {call === undefined || data === undefined ? (
          <Card>
            <p class="muted">
              Choose a call. It is made with your credential, on the node that replies.
            </p>
          </Card>
        ) : (
          <CallForm key={keyOf(call)} call={call} document={data} />
        )}
      </div>
    </>
  );
}

const keyOf = ({ method, path }: Call) => `${method} ${path}`;

function CallForm({ call, document }: { readonly call: Call; readonly document: OpenApi }) {
  const api = useApi();
  const { method, path, operation } = call;
  const parameters = operation.parameters?.filter((parameter) => parameter.in !== "header") ?? [];
  const [values, setValues] = useState<Readonly<Record<string, string>>>({});
  const [body, setBody] = useState(() => exampleOf(operation, document));
  const [answer, setAnswer] = useState<Answer>();
  const [error, setError] = useState<Error>();
  const permissions = operation["x-permissions"] ?? [];
  const isAllowed = permissions.length === 0 || api.allows(...permissions);
  const target = targetOf(path, parameters, values);
  const run = async () => {
    setError(undefined);
    try {
      setAnswer(await api.send(method, target, method === "GET" ? undefined : body));
    } catch (failure) {
      setError(failure as Error);
    }
  };
  return (
    <Card title={`${method} ${path}`}>
      <p>{operation.summary}.</p>
      {permissions.length > 0 && (
        <p class={isAllowed ? "muted" : "note"}>
          Needs{" "}
          {permissions.map((permission) => (
            <code key={permission}>{permission} </code>
          ))}
          {!isAllowed && "– your account does not have it."}
        </p>
      )}
      <form
        class="stack"
        onSubmit={(event) => {
          event.preventDefault();
          void run();
        }}
      >
        {parameters.map(({ name, required, description }) => (
          <Field key={name} label={`${name}${required ? "" : " (optional)"}`}>
            <input
              required={required ?? false}
              title={description ?? ""}
              {...textInput(values[name] ?? "", (value) => setValues({ ...values, [name]: value }))}
            />
            {description !== undefined && <small class="muted">{description}</small>}
          </Field>
        ))}
        {operation.requestBody !== undefined && (
          <Field label="Body">
            <textarea
              rows={Math.min(14, body.split("\n").length + 1)}
              spellcheck={false}
              value={body}
              onInput={(event) => setBody(event.currentTarget.value)}
            />
          </Field>
        )}
        <CurlLine
          method={method}
          path={target}
          {...(operation.requestBody === undefined ? {} : { body })}
        />
        <div>
          <button type="submit" class="primary" disabled={!isAllowed}>
            Call
          </button>
        </div>
      </form>
      <ErrorNote error={error} />
      {answer !== undefined && (
        <>
          <p role="status" class="more">
            <span class={`badge ${answer.status < 400 ? "fine" : "critical"}`}>
              {answer.status}
            </span>
          </p>
          <pre class="json">{bodyText(answer)}</pre>
        </>
      )}
    </Card>
  );
}

/** Returns the path with its parameters filled in. */
function targetOf(
  path: string,
  parameters: readonly Parameter[],
  values: Readonly<Record<string, string>>,
): string {
  const filled = path.replaceAll(/\{(\w+)\}/g, (_, name: string) =>
    encodeURIComponent(values[name] ?? ""),
  );
  const inQuery = parameters.filter((parameter) => parameter.in === "query");
  return withQuery(filled, Object.fromEntries(inQuery.map(({ name }) => [name, values[name]])));
}

function exampleOf({ requestBody }: Operation, { components }: OpenApi): string {
  const schema = requestBody?.content["application/json"]?.schema;
  if (schema === undefined) return "";
  const name = schema.$ref?.split("/").at(-1) ?? "";
  const [example = {}] = schema.examples ?? components.schemas[name]?.examples ?? [];
  return JSON.stringify(example, undefined, 2);
}
