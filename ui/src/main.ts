import { mount } from 'svelte';
import './styles.css';
import App from './App.svelte';

// The address of the page will change; what its parts are relative to must not.
const base = document.querySelector('base');
if (base) base.href = document.baseURI;

const target = document.getElementById('app');
if (target) mount(App, { target });
