// The console of the operator.

import { render } from "preact";

function Console() {
  return (
    <main>
      <h1 class="brand">Jindou console</h1>
      <p>
        <a href="/openapi.json">The HTTP API</a>
      </p>
    </main>
  );
}

render(<Console />, document.body);
