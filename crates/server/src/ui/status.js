// Shows how many tasks are in each state, every two seconds.
const rows = document.getElementById('states');

function show(pairs) {
  rows.replaceChildren(
    ...pairs.map((pair) => {
      const row = document.createElement('tr');
      for (const text of pair) {
        const cell = document.createElement('td');
        cell.textContent = text;
        row.append(cell);
      }
      return row;
    }),
  );
}

async function look() {
  try {
    const answer = await fetch('api/v1/stats');
    const body = await answer.json();
    if (answer.ok) show([...Object.entries(body.by_state), ['all', body.total]]);
    else show([[body.title, body.detail]]);
  } catch {
    show([['the server does not answer', '']]);
  }
}

look();
setInterval(look, 2000);
